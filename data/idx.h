// IDX files, the format of MNIST and Fashion-MNIST (yann.lecun.com/exdb/mnist): big endian 0, 0, type, rank, rank
// sizes, then the elements. Plain or gzip, told apart by the first bytes. Only unsigned bytes (type 8) are read.
// Everything is checked: magic, type, sizes, exact length, bytes after the end. DataError names the file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <limpid/data/dataset.h>

namespace limpid::data {

// The array as a u8 tensor, at most 4 GiB, rank 1..4.
Tensor read_idx(const std::string& path);
Tensor parse_idx(const std::uint8_t* bytes, std::size_t count, const std::string& source);

// train-images-idx3-ubyte[.gz] and its labels, or the t10k pair, in `dir`. Images are [1,28,28], 10 classes.
std::shared_ptr<ImageArrayDataset> fashion_mnist(const std::string& dir, bool train);
std::shared_ptr<ImageArrayDataset> mnist(const std::string& dir, bool train);
std::vector<std::string> fashion_mnist_classes();
std::vector<std::string> mnist_classes();
// True when both files of that half are in `dir`.
bool has_idx_pair(const std::string& dir, bool train);

}  // namespace limpid::data
