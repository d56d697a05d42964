# The CUDA kernels, src/kernels/cuda/*.cu. They include no header of torch, so
# nvcc compiles them on any machine that has it, a GPU or a CUDA libtorch or not.
# Sets TESSERA_CUDA_KERNELS where it does. With TESSERA_WITH_CUDA they become part
# of the library; without, they are compiled to see that they do, as far as PTX.
include(CheckLanguage)
check_language(CUDA)

set(TESSERA_CUDA_KERNELS OFF)
if(TESSERA_WITH_CUDA)
  if(NOT TARGET torch_cuda OR NOT CMAKE_CUDA_COMPILER)
    message(
      FATAL_ERROR
        "TESSERA_WITH_CUDA needs a CUDA build of libtorch and the CUDA toolkit; "
        "libtorch is ${TORCH_INSTALL_PREFIX}, nvcc is "
        "${CMAKE_CUDA_COMPILER}.")
  endif()
  set(TESSERA_CUDA_KERNELS ON)
elseif(CMAKE_CUDA_COMPILER AND TESSERA_TESTS AND NOT TESSERA_SANITIZE)
  set(TESSERA_CUDA_KERNELS ON)
endif()

if(TESSERA_CUDA_KERNELS)
  # Hopper's own code, and what any GPU since Ampere compiles when it is loaded.
  set(TESSERA_CUDA_ARCHITECTURES
      80-virtual 90-real
      CACHE STRING "GPUs that the CUDA kernels are compiled for")
  # Only for the tests of the compiler: torch's package may have set its own.
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES ${TESSERA_CUDA_ARCHITECTURES})
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
endif()
if(TESSERA_WITH_CUDA)
  message(STATUS "CUDA kernels: part of the library")
elseif(TESSERA_CUDA_KERNELS)
  message(STATUS "CUDA kernels: compiled to PTX by ${CMAKE_CUDA_COMPILER}")
elseif(CMAKE_CUDA_COMPILER)
  message(STATUS "CUDA kernels: not compiled, no tests are built")
else()
  message(STATUS "CUDA kernels: NOT COMPILED, no nvcc was found")
endif()

# Defines target tessera_cuda_kernels of the .cu files in `folder`.
function(tessera_add_cuda_kernels folder)
  # torch's package adds flags of its own, which forbid conversions of half.
  set(CMAKE_CUDA_FLAGS "")
  file(GLOB sources CONFIGURE_DEPENDS "${folder}/*.cu")
  if(TESSERA_WITH_CUDA)
    add_library(tessera_cuda_kernels STATIC ${sources})
    set(architectures ${TESSERA_CUDA_ARCHITECTURES})
  else()
    # The code of their hosts is checked on the way; both take a third of the time.
    add_library(tessera_cuda_kernels OBJECT ${sources})
    set_target_properties(tessera_cuda_kernels PROPERTIES CUDA_PTX_COMPILATION ON)
    target_compile_options(tessera_cuda_kernels PRIVATE -Xcicc=-O0)
    set(architectures 90-virtual)
  endif()
  target_include_directories(tessera_cuda_kernels
                             PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  # Products and sums are rounded one by one, as the CPU's are.
  target_compile_options(tessera_cuda_kernels
                         PRIVATE --fmad=false -Xcompiler=-Wall,-Wextra)
  set_target_properties(
    tessera_cuda_kernels
    PROPERTIES CUDA_ARCHITECTURES "${architectures}"
               CUDA_STANDARD 17 # CMake 3.25 knows no more of nvcc
               CUDA_STANDARD_REQUIRED ON
               CUDA_RUNTIME_LIBRARY Shared
               CUDA_VISIBILITY_PRESET hidden
               POSITION_INDEPENDENT_CODE ON)
endfunction()
