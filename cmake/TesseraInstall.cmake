# Installs the library, its headers and a package config that finds Torch:
# find_package(tessera CONFIG REQUIRED) gives tessera::tessera.
include(CMakePackageConfigHelpers)

set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tessera")

install(
  TARGETS tessera
  EXPORT tesseraTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(
  DIRECTORY "${PROJECT_SOURCE_DIR}/include/tessera"
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING
  PATTERN "*.h")
install(
  EXPORT tesseraTargets
  NAMESPACE tessera::
  DESTINATION ${_package_dir})

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/tesseraConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/tesseraConfig.cmake"
  INSTALL_DESTINATION ${_package_dir}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/tesseraConfig.cmake"
              "${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/TesseraFindTorch.cmake"
        DESTINATION ${_package_dir})
