# Defines target `torch`. Installed beside tesseraConfig.cmake, so that building
# tessera and using it find libtorch in the same way.
#
# torch's own package is taken as it is, with one exception: that of a CUDA
# build stops with an error on a machine without the CUDA toolkit, though
# nothing here needs it to compile (PyPI's default wheel is such a build). There
# the target is made by hand.

# tessera_find_torch(<result> [HINTS <prefix>...]) looks in Torch_DIR and
# CMAKE_PREFIX_PATH (variable and environment), then in HINTS.
macro(tessera_find_torch result)
  cmake_parse_arguments(_tessera "" "" "HINTS" ${ARGN})
  set(${result} FALSE)
  string(REPLACE ":" ";" _tessera_prefixes "$ENV{CMAKE_PREFIX_PATH}")
  find_path(
    TESSERA_TORCH_CONFIG_DIR TorchConfig.cmake
    HINTS ${Torch_DIR} ${CMAKE_PREFIX_PATH} ${_tessera_prefixes}
          ${_tessera_HINTS}
    PATH_SUFFIXES share/cmake/Torch Torch)
  mark_as_advanced(TESSERA_TORCH_CONFIG_DIR)
  if(TESSERA_TORCH_CONFIG_DIR)
    file(READ "${TESSERA_TORCH_CONFIG_DIR}/../Caffe2/Caffe2Targets.cmake"
         _tessera_targets)
    if(_tessera_targets MATCHES "torch_cuda")
      find_package(CUDAToolkit QUIET)
    endif()
    if(NOT _tessera_targets MATCHES "torch_cuda" OR CUDAToolkit_FOUND)
      # torch's config warns of libraries that its wheels do not ship (kineto)
      # and that nothing needs.
      set(_tessera_log_level "${CMAKE_MESSAGE_LOG_LEVEL}")
      set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
      find_package(Torch QUIET PATHS "${TESSERA_TORCH_CONFIG_DIR}"
                                     NO_DEFAULT_PATH)
      set(CMAKE_MESSAGE_LOG_LEVEL "${_tessera_log_level}")
      set(${result} ${Torch_FOUND})
    else()
      _tessera_import_torch("${TESSERA_TORCH_CONFIG_DIR}/../../..")
      set(${result} TRUE)
    endif()
  endif()
endmacro()

macro(_tessera_import_torch prefix)
  get_filename_component(TORCH_INSTALL_PREFIX "${prefix}" ABSOLUTE)
  set(TORCH_INCLUDE_DIRS
      "${TORCH_INSTALL_PREFIX}/include"
      "${TORCH_INSTALL_PREFIX}/include/torch/csrc/api/include")
  include("${TESSERA_TORCH_CONFIG_DIR}/TorchConfigVersion.cmake")
  set(Torch_VERSION "${PACKAGE_VERSION}")
  foreach(_tessera_lib c10 torch_cpu torch)
    if(NOT TARGET ${_tessera_lib})
      add_library(${_tessera_lib} SHARED IMPORTED)
      set_target_properties(
        ${_tessera_lib}
        PROPERTIES IMPORTED_LOCATION
                   "${TORCH_INSTALL_PREFIX}/lib/lib${_tessera_lib}.so"
                   INTERFACE_INCLUDE_DIRECTORIES "${TORCH_INCLUDE_DIRS}")
    endif()
  endforeach()
  # libtorch itself has no symbols; it is what loads the CUDA kernels.
  target_link_libraries(
    torch
    INTERFACE
      "-Wl,--no-as-needed,${TORCH_INSTALL_PREFIX}/lib/libtorch.so,--as-needed"
      torch_cpu c10)
  target_compile_definitions(torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
endmacro()
