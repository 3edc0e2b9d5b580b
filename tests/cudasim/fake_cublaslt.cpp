// The fake's cuBLASLt: the version. Products stay with limpid's own kernels under the fake.
#include <cstddef>

extern "C" std::size_t cublasLtGetVersion() { return 130100; }
