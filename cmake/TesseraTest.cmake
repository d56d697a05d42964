# How test programs are built and registered.
find_package(GTest REQUIRED)

# Compiles `target` with the one precompiled header. It holds GoogleTest too,
# whose compile options must then be the same.
function(tessera_use_pch target)
  target_compile_options(${target} PRIVATE ${TESSERA_TEST_OPTIONS})
  if(TESSERA_PCH)
    target_link_libraries(${target} PRIVATE GTest::gtest)
    target_precompile_headers(${target} REUSE_FROM tessera_testing_main)
  endif()
endfunction()

# Sets in `out` the command that starts `ARGN` as four processes that find each
# other through the environment, on a free port. Not torchrun, which imports
# torch first: that takes seconds.
function(tessera_process_command out)
  set(${out}
      "${TESSERA_PYTHON}" "${PROJECT_SOURCE_DIR}/scripts/launch.py"
      --nproc-per-node 4 ${ARGN}
      PARENT_SCOPE)
endfunction()

# The same as users start their programs: by torchrun, where it is there.
function(tessera_torchrun_command out)
  if(TESSERA_TORCHRUN)
    set(command "${TESSERA_TORCHRUN}" --standalone --no-python --nproc-per-node 4
                ${ARGN})
  else()
    tessera_process_command(command ${ARGN})
  endif()
  set(${out}
      ${command}
      PARENT_SCOPE)
endfunction()

# One thread a rank: ranks are the parallelism, and sums have one order. torch's
# store asks the name server who connects; where an answer is lost, it shall not
# wait five seconds and ask again.
set(tessera_test_environment OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
                             "RES_OPTIONS=timeout:1 attempts:1")
if(TESSERA_SANITIZE)
  set(_suppressions "${PROJECT_SOURCE_DIR}/cmake/sanitizers")
  list(
    APPEND
    tessera_test_environment
    "ASAN_OPTIONS=detect_leaks=0:strict_string_checks=1"
    "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:suppressions=${_suppressions}/ubsan.txt"
    # Mutexes of libtorch are locked where the sanitizer does not look, and
    # unlocked by jumps out of it that seem to be ours.
    "TSAN_OPTIONS=halt_on_error=0:exitcode=66:report_mutex_bugs=0:suppressions=${_suppressions}/tsan.txt")
endif()
# Sanitizers make tests several times slower.
set(_tessera_test_timeout 900)
if(TESSERA_SANITIZE)
  set(_tessera_test_timeout 3600)
endif()

# Registers a test in the simulated world: tessera_add_sim_test(name command...)
function(tessera_add_sim_test name)
  add_test(NAME ${name} COMMAND ${ARGN})
  set_tests_properties(
    ${name} PROPERTIES LABELS sim TIMEOUT ${_tessera_test_timeout} ENVIRONMENT
                       "${tessera_test_environment}")
endfunction()

# Four processes that wait for each other keep about one processor busy, so that
# another test runs beside them.
function(tessera_set_process_properties name)
  set_tests_properties(
    ${name} PROPERTIES LABELS process TIMEOUT 900 ENVIRONMENT
                       "${tessera_test_environment}")
endfunction()

# The same over four processes.
function(tessera_add_process_test name)
  tessera_process_command(command ${ARGN})
  add_test(NAME ${name} COMMAND ${command})
  tessera_set_process_properties(${name})
endfunction()

# A test of the sources or of the build, which runs no rank.
function(tessera_add_source_test name)
  add_test(NAME ${name} COMMAND ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS source TIMEOUT 900)
endfunction()

# tessera_add_layer_tests(<layer> LINK <parts> MAIN <target> [SIM] [PROCESSES]
# [NO_PCH]) makes tests_<layer> of tests/<layer>/*_test.cpp, if there are any, with
# the objects of the layers named (and `testing`) and no others. Several sources
# are compiled at a time, so each has a namespace of its own, named after the file.
# Whoever takes the precompiled header instantiates, in every unit, what templates
# its functions use: 8 s. NO_PCH is for tests that include little of torch.
function(tessera_add_layer_tests layer)
  cmake_parse_arguments(arg "SIM;PROCESSES;NO_PCH" "MAIN" "LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${layer}/*_test.cpp")
  if(NOT sources)
    return()
  endif()
  set(name tests_${layer})
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE ${arg_MAIN} tessera_test_base)
  foreach(linked ${arg_LINK})
    if(TARGET tessera_${linked})
      target_link_libraries(${name} PRIVATE tessera_${linked})
    endif()
  endforeach()
  if(arg_NO_PCH)
    target_compile_options(${name} PRIVATE ${TESSERA_TEST_OPTIONS})
  else()
    tessera_use_pch(${name})
  endif()
  tessera_use_unity(${name})
  if(arg_SIM)
    tessera_add_sim_test(${name} $<TARGET_FILE:${name}>)
  endif()
  if(arg_PROCESSES AND TESSERA_HAS_GLOO)
    tessera_add_process_test(${name}_4_processes $<TARGET_FILE:${name}>)
  endif()
endfunction()
