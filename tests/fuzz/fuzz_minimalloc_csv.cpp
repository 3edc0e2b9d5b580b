// The reader of MiniMalloc's lists.
#include <limpid/memory/trace_import.h>

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return limpid_fuzz::try_read(data, size, [](std::string_view s) { return limpid::memory::parse_minimalloc_csv(s); });
}

std::vector<std::string> fuzz_seeds() {
  return {"id,lower,upper,size\n", "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\n",
          "size,lower,upper,id,offset\n7,1,2,x,0\n"};
}
