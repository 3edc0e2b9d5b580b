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
  limpid_kernel_library(${name} SOURCES ${arg_SOURCES} OPTIONS $<$<CONFIG:Release>:-O2>$<$<CONFIG:Sanitize>:-O1>)
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

# nvcc's code:
#   limpid_ptx_kernels(NAME SOURCES a.cu b.cu)    compiles PTX for the architectures of LIMPID_PTX_ARCHITECTURES
#   limpid_ptx_test(NAME TEST executable KERNELS ptx-kernels [ARGUMENTS ...])
#                                                 runs a test's executable on them, one ctest an architecture, label ptx; it is
#                                                 linked to emulated or checked kernels of the same sources for the host's half
#   limpid_nvcc_budgets(NAME TABLE file SOURCES a.cu b.cu [KERNELS ptx-kernels])
#                                                 registers, shared memory and spills of every kernel against a table, and 16-byte
#                                                 loads where it asks for them. For sm_90 (label ptx; from the PTX of KERNELS), and
#                                                 for all of LIMPID_CUDA_ARCHITECTURES (labels nvcc-all, long)
# Without nvcc these tests are disabled: ctest lists them as not run. Under a sanitizer they are absent: what they test is
# nvcc's code.
set(LIMPID_PTX_ARCHITECTURES 75 90)
set(LIMPID_CUDA_ARCHITECTURES 75 80 86 89 90 100 120)
find_program(LIMPID_NVCC nvcc HINTS ${CUDAToolkit_BIN_DIR} /usr/local/cuda/bin DOC "The CUDA compiler, for tests of its PTX")
if(NOT LIMPID_NVCC)
  message(STATUS "nvcc not found: the tests of PTX and of register budgets are disabled")
endif()
find_package(Python3 COMPONENTS Interpreter QUIET)

set(LIMPID_NVCC_FLAGS -std=c++20 -O2 -lineinfo -I${PROJECT_SOURCE_DIR}/tests -I${PROJECT_BINARY_DIR}/include)

function(limpid_ptx_kernels name)
  if(LIMPID_SANITIZE)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")
  list(FILTER arg_SOURCES INCLUDE REGEX "\\.cu$")  # host sources of the launchers are no concern of nvcc's PTX
  set(all)
  foreach(arch ${LIMPID_PTX_ARCHITECTURES})
    set(files)
    foreach(source ${arg_SOURCES})
      get_filename_component(source ${source} ABSOLUTE)
      get_filename_component(stem ${source} NAME_WE)
      set(ptx ${CMAKE_CURRENT_BINARY_DIR}/${stem}.sm_${arch}.ptx)
      get_property(known DIRECTORY PROPERTY limpid_ptx_${stem}_${arch})  # a source may belong to several tests
      if(LIMPID_NVCC AND NOT known)
        add_custom_command(OUTPUT ${ptx}
          COMMAND ${LIMPID_NVCC} ${LIMPID_NVCC_FLAGS} -arch=compute_${arch} -ptx ${source} -o ${ptx} -MD -MF ${ptx}.d
          DEPENDS ${source} DEPFILE ${ptx}.d COMMENT "PTX for sm_${arch}: ${stem}.cu" VERBATIM)
      endif()
      set_property(DIRECTORY PROPERTY limpid_ptx_${stem}_${arch} ${source})
      list(APPEND files ${ptx})
    endforeach()
    list(APPEND all ${files})
    string(REPLACE ";" ":" files "${files}")
    set_property(GLOBAL PROPERTY limpid_ptx_${name}_${arch} ${files})
  endforeach()
  if(LIMPID_NVCC)
    add_custom_target(${name} ALL DEPENDS ${all})
  endif()
endfunction()

function(limpid_ptx_test name)
  if(LIMPID_SANITIZE)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TEST;KERNELS" "ARGUMENTS")
  foreach(arch ${LIMPID_PTX_ARCHITECTURES})
    get_property(files GLOBAL PROPERTY limpid_ptx_${arg_KERNELS}_${arch})
    if(NOT files)
      message(FATAL_ERROR "limpid_ptx_test(${name}): no limpid_ptx_kernels(${arg_KERNELS})")
    endif()
    add_test(NAME ${name}.sm_${arch} COMMAND ${arg_TEST} ${arg_ARGUMENTS})
    set_tests_properties(${name}.sm_${arch} PROPERTIES LABELS ptx TIMEOUT 600 ENVIRONMENT "CUDASIM_PTX=${files}")
    if(NOT LIMPID_NVCC)
      set_tests_properties(${name}.sm_${arch} PROPERTIES DISABLED TRUE)
    endif()
  endforeach()
endfunction()

function(limpid_nvcc_budgets name)
  if(LIMPID_SANITIZE)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TABLE;KERNELS" "SOURCES")
  list(FILTER arg_SOURCES INCLUDE REGEX "\\.cu$")
  set(sources)
  foreach(source ${arg_SOURCES})
    get_filename_component(source ${source} ABSOLUTE)
    list(APPEND sources ${source})
  endforeach()
  get_filename_component(table ${arg_TABLE} ABSOLUTE)
  set(command ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/cudasim/nvcc_budgets.py --nvcc=${LIMPID_NVCC} --table=${table})
  set(one)
  if(arg_KERNELS)
    get_property(files GLOBAL PROPERTY limpid_ptx_${arg_KERNELS}_90)
    if(NOT files)
      message(FATAL_ERROR "limpid_nvcc_budgets(${name}): no limpid_ptx_kernels(${arg_KERNELS})")
    endif()
    set(one --ptx=${files})
  endif()
  add_test(NAME ${name} COMMAND ${command} --architectures=90 ${one} "--flags=${LIMPID_NVCC_FLAGS}" ${sources})
  set_tests_properties(${name} PROPERTIES LABELS ptx TIMEOUT 900)
  string(REPLACE ";" "," architectures "${LIMPID_CUDA_ARCHITECTURES}")
  add_test(NAME long.${name} COMMAND ${command} --architectures=${architectures} "--flags=${LIMPID_NVCC_FLAGS}" ${sources})
  set_tests_properties(long.${name} PROPERTIES LABELS "nvcc-all;long" TIMEOUT 3600)
  if(NOT LIMPID_NVCC OR NOT Python3_EXECUTABLE)
    set_tests_properties(${name} long.${name} PROPERTIES DISABLED TRUE)
  endif()
endfunction()
