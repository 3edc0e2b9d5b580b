# The fake CUDA libraries (fake_cuda.h), with the names of the real ones, in a folder of their own. A program that links
# with them, or is started with LD_LIBRARY_PATH on that folder, finds them in place of CUDA's.
set(LIMPID_FAKE_CUDA_FOLDER ${PROJECT_BINARY_DIR}/tests/cudasim)
function(limpid_fake_library target soname)
  add_library(${target} SHARED ${ARGN})
  target_include_directories(${target} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR} PRIVATE ${PROJECT_BINARY_DIR}/include)
  target_link_libraries(${target} PRIVATE limpid_flags)
  # The file has the very name: libcudart.so.13.
  string(REGEX REPLACE "^lib(.*)\\.so\\..*$" "\\1" name ${soname})
  string(REGEX REPLACE "^.*(\\.so\\..*)$" "\\1" suffix ${soname})
  set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${LIMPID_FAKE_CUDA_FOLDER} OUTPUT_NAME ${name} SUFFIX ${suffix}
    CXX_VISIBILITY_PRESET default)
  target_link_options(${target} PRIVATE -Wl,-soname,${soname})
endfunction()
limpid_fake_library(fake_cudart libcudart.so.13 cudasim/fake_streams.cpp cudasim/fake_memory.cpp cudasim/fake_cudart.cpp)
limpid_fake_library(fake_driver libcuda.so.1 cudasim/fake_driver.cpp)
limpid_fake_library(fake_nvml libnvidia-ml.so.1 cudasim/fake_nvml.cpp)
limpid_fake_library(fake_cublaslt libcublasLt.so.13 cudasim/fake_cublaslt.cpp)
limpid_fake_library(fake_cudnn libcudnn.so.9 cudasim/fake_cudnn.cpp)
target_link_libraries(fake_driver PUBLIC fake_cudart)
target_link_libraries(fake_nvml PUBLIC fake_cudart)
add_library(limpid_fake_cuda INTERFACE)
target_link_libraries(limpid_fake_cuda INTERFACE -Wl,--no-as-needed fake_cudart fake_driver fake_nvml fake_cublaslt fake_cudnn -Wl,--as-needed)
