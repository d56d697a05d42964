# Compiles src/kernels/*.cu. libtorch must be a CUDA build: its kernels and ours
# share streams and memory.
if(NOT TARGET torch_cuda)
  message(
    FATAL_ERROR
      "TESSERA_WITH_CUDA needs a CUDA build of libtorch and the CUDA toolkit; "
      "the one found (${TORCH_INSTALL_PREFIX}) has no torch_cuda.")
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES all-major)
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
