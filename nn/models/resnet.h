// Residual networks out of Sequential and Residual, with torchvision's names. Internal to nn/models.
#pragma once

#include <limpid/nn/models/models.h>

namespace limpid::nn {

std::shared_ptr<Module> make_resnet9(const ModelOptions& options);
std::shared_ptr<Module> make_resnet20(const ModelOptions& options);
std::shared_ptr<Module> make_resnet18(const ModelOptions& options);
std::shared_ptr<Module> make_resnet50(const ModelOptions& options);

}  // namespace limpid::nn
