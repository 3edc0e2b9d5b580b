// safetensors files (huggingface.co/docs/safetensors): 8 bytes length, a JSON header, the tensors' bytes. What
// PyTorch's users open with safetensors.torch.load_file. Written whole or not at all; read with every number of the
// header checked.
#pragma once

#include <map>
#include <string>

#include <limpid/tensor/tensor.h>

namespace limpid {

// Tensors on the CPU, any strides; written row-major, largest element type first, then by name, so that each is
// aligned. ArgumentError for an undefined tensor or a name that is not UTF-8 or is "__metadata__"; IoError when writing
// fails.
void save_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

// New tensors on the CPU. DataError with the path: header longer than the file or 100 MB, not JSON, unknown dtype, bad
// shape, offsets out of range, overlapping or leaving holes, size not dtype x shape, a name twice, bytes after the end.
std::map<std::string, Tensor> load_safetensors(const std::string& path,
                                               std::map<std::string, std::string>* metadata = nullptr,
                                               memory::Role role = memory::Role::other);

}  // namespace limpid
