// CIFAR-10, binary version (cs.toronto.edu/~kriz/cifar.html): records of 3,073 bytes, one class and 3x32x32 pixels in
// planes. data_batch_1.bin .. data_batch_5.bin train, test_batch.bin tests. DataError names the file and the record.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <limpid/data/dataset.h>

namespace limpid::data {

// `dir` holds the .bin files, or the folder cifar-10-batches-bin that does.
std::shared_ptr<ImageArrayDataset> cifar10(const std::string& dir, bool train);
// Any files of such records, in this order. batches.meta.txt is not needed: the names are fixed.
std::shared_ptr<ImageArrayDataset> cifar10_files(const std::vector<std::string>& paths);
// True when all files of that half are there.
bool has_cifar10(const std::string& dir, bool train);
std::vector<std::string> cifar10_classes();

}  // namespace limpid::data
