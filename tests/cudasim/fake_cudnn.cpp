// The fake's cuDNN: the version. Convolutions stay with limpid's own kernels under the fake.
#include <cstddef>

extern "C" std::size_t cudnnGetVersion() { return 91900; }
