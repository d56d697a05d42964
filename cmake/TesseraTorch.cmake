# Finds libtorch, the Python tools beside it, and which of c10d's backends can be
# compiled against. Sets TESSERA_HAS_GLOO, TESSERA_HAS_NCCL, TESSERA_PYTHON and
# TESSERA_TORCHRUN.
include(TesseraFindTorch)

# The repository's virtual environment comes first, then PATH.
find_program(
  TESSERA_PYTHON
  NAMES python3 python
  HINTS "${PROJECT_SOURCE_DIR}/.venv/bin")
find_program(
  TESSERA_TORCHRUN
  NAMES torchrun
  HINTS "${PROJECT_SOURCE_DIR}/.venv/bin")
mark_as_advanced(TESSERA_PYTHON TESSERA_TORCHRUN)

# CMAKE_PREFIX_PATH first, else the torch package of that Python.
tessera_find_torch(_tessera_torch_found)
if(NOT _tessera_torch_found AND TESSERA_PYTHON)
  execute_process(
    COMMAND "${TESSERA_PYTHON}" -c
            "import torch; print(torch.utils.cmake_prefix_path)"
    OUTPUT_VARIABLE _tessera_torch_prefix
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(_tessera_torch_prefix)
    tessera_find_torch(_tessera_torch_found HINTS "${_tessera_torch_prefix}")
  endif()
endif()
if(NOT _tessera_torch_found)
  message(
    FATAL_ERROR
      "libtorch was not found. Run scripts/setup.sh, or pass "
      "-DCMAKE_PREFIX_PATH=<libtorch> (for a Python package: "
      "python -c 'import torch; print(torch.utils.cmake_prefix_path)').")
endif()
if(Torch_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "libtorch ${Torch_VERSION} is too old; need 2.11 or later")
endif()
message(STATUS "libtorch ${Torch_VERSION}: ${TORCH_INSTALL_PREFIX}")

# Compiles and links a program that names a c10d backend: its class must be in
# the torch library and the headers it includes must be there.
function(tessera_check_backend result define header symbol)
  include(CheckCXXSourceCompiles)
  # By path: the imported target drags in others that a test project lacks.
  get_target_property(c10 c10 LOCATION)
  get_target_property(torch_cpu torch_cpu LOCATION)
  set(CMAKE_REQUIRED_LIBRARIES "${torch_cpu}" "${c10}")
  if(TARGET torch_cuda)
    get_target_property(torch_cuda torch_cuda LOCATION)
    list(PREPEND CMAKE_REQUIRED_LIBRARIES "${torch_cuda}")
  endif()
  set(CMAKE_REQUIRED_INCLUDES ${TORCH_INCLUDE_DIRS} ${CUDAToolkit_INCLUDE_DIRS})
  set(CMAKE_REQUIRED_DEFINITIONS -D${define})
  set(CMAKE_REQUIRED_QUIET ON)
  check_cxx_source_compiles(
    "#include <torch/csrc/distributed/c10d/${header}>
     int main() { return &${symbol} == nullptr; }"
    ${result})
endfunction()

# Every target of torch says whether it was built with Gloo; its headers are not
# in the wheel. Not compiled to see, which takes as long as the source itself.
set(TESSERA_HAS_GLOO OFF)
if(TESSERA_WITH_GLOO)
  find_path(TESSERA_GLOO_INCLUDE_DIR gloo/algorithm.h)
  mark_as_advanced(TESSERA_GLOO_INCLUDE_DIR)
  foreach(target torch torch_cpu)
    get_target_property(_definitions ${target} INTERFACE_COMPILE_DEFINITIONS)
    if(TESSERA_GLOO_INCLUDE_DIR AND "USE_C10D_GLOO" IN_LIST _definitions)
      set(TESSERA_HAS_GLOO ON)
    endif()
  endforeach()
endif()

set(TESSERA_HAS_NCCL OFF)
if(TESSERA_WITH_NCCL AND TARGET torch_cuda)
  tessera_check_backend(TESSERA_NCCL_COMPILES USE_C10D_NCCL
                        ProcessGroupNCCL.hpp c10d::getNcclVersion)
  if(TESSERA_NCCL_COMPILES)
    set(TESSERA_HAS_NCCL ON)
  endif()
endif()
message(STATUS "c10d backends: gloo ${TESSERA_HAS_GLOO}, nccl ${TESSERA_HAS_NCCL}")
