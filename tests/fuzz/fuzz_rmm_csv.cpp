// The reader of RMM logs.
#include <limpid/memory/trace_import.h>

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return limpid_fuzz::try_read(data, size, [](std::string_view s) { return limpid::memory::parse_rmm_csv(s); });
}

std::vector<std::string> fuzz_seeds() {
  return {"Thread,Time,Action,Pointer,Size,Stream\n",
          "Thread,Time,Action,Pointer,Size,Stream\n1,10:20:30.123456,allocate,0x7f0000000000,1024,0x0\n"
          "1,10:20:31,allocate,0x7f0000000400,300000,7\n1,10:20:32,free,0x7f0000000000,1024,default\n"
          "2,10:20:33,allocate failure,(nil),99999,0\n1,10:20:34,deallocate,0x7f0000000400,300000,7\n"};
}
