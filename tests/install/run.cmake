# Installs a build into an empty prefix, builds examples/cmake_project against
# it and runs what came out. Called with -DBUILD_DIR, -DSOURCE_DIR, -DWORK_DIR,
# -DTORCH_DIR, -DCXX, -DLAUNCHER.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(prefix "${WORK_DIR}/prefix")
# Only the prefix starts afresh: the consumer is rebuilt where it must be.
file(REMOVE_RECURSE "${prefix}")
run(${CMAKE_COMMAND} --install "${BUILD_DIR}" --prefix "${prefix}")
run(${CMAKE_COMMAND}
    -S "${SOURCE_DIR}/examples/cmake_project"
    -B "${WORK_DIR}/build"
    -G Ninja
    "-DCMAKE_PREFIX_PATH=${prefix}"
    "-DTorch_DIR=${TORCH_DIR}"
    "-DCMAKE_CXX_COMPILER=${CXX}"
    "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}")
run(${CMAKE_COMMAND} --build "${WORK_DIR}/build")
run("${WORK_DIR}/build/sum_of_two")

# The command finds its libraries.
execute_process(
  COMMAND "${prefix}/bin/tessera-checkpoint"
  RESULT_VARIABLE code
  ERROR_VARIABLE text)
if(NOT code EQUAL 2 OR NOT text MATCHES "usage: tessera-checkpoint")
  message(FATAL_ERROR "tessera-checkpoint ended with ${code}: ${text}")
endif()
