# The executions of a CUDA kernel source without a GPU. Each function takes .cu files that include cuda/cuda_lang.cuh.
#
#   limpid_emulated_kernels(NAME SOURCES a.cu b.cu)   static library: g++'s code, run by the emulator
#   limpid_checked_kernels(NAME SOURCES a.cu b.cu)    the same, and every access goes through the access checker; absent under
#                                                     a sanitizer (LIMPID_HAVE_CHECKED_KERNELS says so)
# Both bring the emulator (target cudasim) and the launchers that the sources define; link a test to one of them. All are
# made in the directory that calls them. CUDA's headers are needed, its compiler is not.

find_package(CUDAToolkit QUIET)
set(LIMPID_CUDASIM_FLAGS -Wno-unknown-pragmas -Wno-unused-function)  # `#pragma unroll` is nvcc's
set(LIMPID_HAVE_CHECKED_KERNELS ON)
if(LIMPID_SANITIZE)
  set(LIMPID_HAVE_CHECKED_KERNELS OFF)  # the checker takes the place of a sanitizer's run-time library
endif()

function(limpid_kernel_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;OPTIONS")
  add_library(${name} STATIC ${arg_SOURCES})
  set_source_files_properties(${arg_SOURCES} PROPERTIES LANGUAGE CXX)
  target_compile_definitions(${name} PRIVATE LIMPID_CUDA_EMULATED)
  target_compile_options(${name} PRIVATE ${LIMPID_CUDASIM_FLAGS} ${arg_OPTIONS})
  target_link_libraries(${name} PUBLIC cudasim PRIVATE limpid_flags)
endfunction()

function(limpid_emulated_kernels name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")
  limpid_kernel_library(${name} SOURCES ${arg_SOURCES} OPTIONS $<$<CONFIG:Release>:-O2>)
endfunction()

function(limpid_checked_kernels name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")
  if(NOT LIMPID_HAVE_CHECKED_KERNELS)
    message(FATAL_ERROR "limpid_checked_kernels(${name}): not together with LIMPID_SANITIZE=${LIMPID_SANITIZE}")
  endif()
  # The sanitizer's code generation without its run-time library: checker_entry.cpp is that. -g1: lines for the findings.
  # Scalar replacement would split a 16-byte load into four, which hides that it is misaligned.
  limpid_kernel_library(${name} SOURCES ${arg_SOURCES}
    OPTIONS -O1 -g1 -fno-tree-sra -fsanitize=thread --param tsan-instrument-func-entry-exit=0)
  target_link_libraries(${name} PUBLIC cudasim_checker)
endfunction()
