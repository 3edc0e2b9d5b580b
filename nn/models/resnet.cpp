#include <limpid/nn/models/resnet.h>

#include <limpid/nn/activation.h>
#include <limpid/nn/containers.h>
#include <limpid/nn/conv.h>
#include <limpid/nn/flatten.h>
#include <limpid/nn/init.h>
#include <limpid/nn/linear.h>
#include <limpid/nn/norm.h>
#include <limpid/nn/pool.h>

namespace limpid::nn {
namespace {

Conv2d conv3x3(std::int64_t in, std::int64_t out, std::int64_t stride = 1) {
  return Conv2d(
      {.in_channels = in, .out_channels = out, .kernel_size = 3, .stride = stride, .padding = 1, .bias = false});
}
Conv2d conv1x1(std::int64_t in, std::int64_t out, std::int64_t stride = 1) {
  return Conv2d({.in_channels = in, .out_channels = out, .kernel_size = 1, .stride = stride, .bias = false});
}
BatchNorm2d norm(std::int64_t channels) { return BatchNorm2d({.num_features = channels}); }

// Option A of He et al. 2016, section 3.3: every stride-th pixel, the new channels zero. No parameters.
class PadShortcut : public Module {
 public:
  PadShortcut(std::int64_t in, std::int64_t out, std::int64_t stride) : in_(in), out_(out), stride_(stride) {}
  Tensor forward(const Tensor& x) override {
    Tensor y = stride_ == 1 ? x : avg_pool2d(x, {.kernel_size = {1, 1}, .stride = {stride_, stride_}});
    std::int64_t before = (out_ - in_) / 2;
    return contiguous(pad(y, {0, 0, 0, 0, before, out_ - in_ - before}), MemoryFormat::channels_last);
  }
  std::string type_name() const override { return "PadShortcut"; }
  std::string describe() const override { return concat("PadShortcut(", in_, ", ", out_, ", stride=", stride_, ")"); }

 private:
  std::int64_t in_, out_, stride_;
};

std::shared_ptr<Module> projection(std::int64_t in, std::int64_t out, std::int64_t stride) {
  if (in == out && stride == 1) return nullptr;
  return std::make_shared<Sequential>(conv1x1(in, out, stride), norm(out));
}

Residual basic_block(std::int64_t in, std::int64_t width, std::int64_t stride, bool pad_shortcut) {
  std::shared_ptr<Module> shortcut = projection(in, width, stride);
  if (shortcut && pad_shortcut) shortcut = std::make_shared<PadShortcut>(in, width, stride);
  return Residual({{"conv1", conv3x3(in, width, stride)},
                   {"bn1", norm(width)},
                   {"relu1", ReLU()},
                   {"conv2", conv3x3(width, width)},
                   {"bn2", norm(width)}},
                  {.shortcut = shortcut,
                   .shortcut_name = "downsample",
                   .activation = std::make_shared<ReLU>(),
                   .activation_name = "relu"});
}

// The stride stands in the 3x3 convolution (torchvision's v1.5).
Residual bottleneck(std::int64_t in, std::int64_t width, std::int64_t stride) {
  std::int64_t out = 4 * width;
  return Residual({{"conv1", conv1x1(in, width)},
                   {"bn1", norm(width)},
                   {"relu1", ReLU()},
                   {"conv2", conv3x3(width, width, stride)},
                   {"bn2", norm(width)},
                   {"relu2", ReLU()},
                   {"conv3", conv1x1(width, out)},
                   {"bn3", norm(out)}},
                  {.shortcut = projection(in, out, stride),
                   .shortcut_name = "downsample",
                   .activation = std::make_shared<ReLU>(),
                   .activation_name = "relu"});
}

void add_head(Sequential& net, std::int64_t features, std::int64_t classes) {
  net.push_back("avgpool", AdaptiveAvgPool2d(1));
  net.push_back("flatten", Flatten());
  net.push_back("fc", Linear({.in_features = features, .out_features = classes}));
}

// N(0, 2 / fan_out) for convolutions: He et al. 2015, as torchvision.
std::shared_ptr<Module> he_init(std::shared_ptr<Sequential> net) {
  for (auto& [path, module] : net->named_modules()) {
    if (auto* conv = dynamic_cast<Conv2d*>(module))
      init::kaiming_normal(conv->weight, {.mode = init::FanMode::fan_out, .nonlinearity = init::Nonlinearity::relu});
  }
  return net;
}

}  // namespace

std::shared_ptr<Module> make_resnet20(const ModelOptions& options) {
  auto net = std::make_shared<Sequential>();
  net->push_back("conv1", conv3x3(options.input[0], 16));
  net->push_back("bn1", norm(16));
  net->push_back("relu", ReLU());
  std::int64_t in = 16;
  for (int stage = 1; stage <= 3; stage++) {
    Sequential layer;
    std::int64_t width = 8 << stage;
    for (int block = 0; block < 3; block++) {
      layer.push_back(basic_block(in, width, stage > 1 && block == 0 ? 2 : 1, true));
      in = width;
    }
    net->push_back(concat("layer", stage), std::move(layer));
  }
  add_head(*net, in, options.classes);
  return he_init(net);
}

std::shared_ptr<Module> make_resnet18(const ModelOptions& options) {
  auto net = std::make_shared<Sequential>();
  net->push_back("conv1", conv3x3(options.input[0], 64));
  net->push_back("bn1", norm(64));
  net->push_back("relu", ReLU());
  std::int64_t in = 64;
  for (int stage = 1; stage <= 4; stage++) {
    Sequential layer;
    std::int64_t width = 32 << stage;
    for (int block = 0; block < 2; block++) {
      layer.push_back(basic_block(in, width, stage > 1 && block == 0 ? 2 : 1, false));
      in = width;
    }
    net->push_back(concat("layer", stage), std::move(layer));
  }
  add_head(*net, in, options.classes);
  return he_init(net);
}

std::shared_ptr<Module> make_resnet50(const ModelOptions& options) {
  auto net = std::make_shared<Sequential>();
  net->push_back("conv1", Conv2d({.in_channels = options.input[0],
                                  .out_channels = 64,
                                  .kernel_size = 7,
                                  .stride = 2,
                                  .padding = 3,
                                  .bias = false}));
  net->push_back("bn1", norm(64));
  net->push_back("relu", ReLU());
  net->push_back("maxpool", MaxPool2d({.kernel_size = 3, .stride = 2, .padding = 1}));
  std::int64_t in = 64;
  const int blocks[] = {3, 4, 6, 3};
  for (int stage = 1; stage <= 4; stage++) {
    Sequential layer;
    std::int64_t width = 32 << stage;
    for (int block = 0; block < blocks[stage - 1]; block++) {
      layer.push_back(bottleneck(in, width, stage > 1 && block == 0 ? 2 : 1));
      in = 4 * width;
    }
    net->push_back(concat("layer", stage), std::move(layer));
  }
  add_head(*net, in, options.classes);
  return he_init(net);
}

// Page's DAWNBench network as commonly retold: conv-norm-relu blocks of 64, 128, 256 and 512 channels, pooled by 2, and
// two residual pairs. 6.57 M parameters.
std::shared_ptr<Module> make_resnet9(const ModelOptions& options) {
  auto block = [](std::int64_t in, std::int64_t out, bool pool) {
    Sequential layers(conv3x3(in, out), norm(out), ReLU());
    if (pool) layers.push_back(MaxPool2d(2));
    return layers;
  };
  auto pair = [&](std::int64_t width) {
    return Residual({{"0", block(width, width, false)}, {"1", block(width, width, false)}});
  };
  auto net = std::make_shared<Sequential>();
  net->push_back("conv1", block(options.input[0], 64, false));
  net->push_back("conv2", block(64, 128, true));
  net->push_back("res1", pair(128));
  net->push_back("conv3", block(128, 256, true));
  net->push_back("conv4", block(256, 512, true));
  net->push_back("res2", pair(512));
  add_head(*net, 512, options.classes);
  return net;
}

}  // namespace limpid::nn
