# Target tessera_compile_options: warnings and sanitizers for our own sources.
# torch's headers come from an imported target, so they are SYSTEM includes and
# never warn. Warnings are errors where CMAKE_COMPILE_WARNING_AS_ERROR is set
# (the presets dev, asan and tsan).
add_library(tessera_compile_options INTERFACE)
target_compile_options(
  tessera_compile_options INTERFACE -Wall -Wextra -Wswitch
                                    $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
# GCC collects garbage from 128 MiB on, again and again beside a precompiled header
# of 700 MiB. Later, in KiB, it spares a tenth of the time for a tenth more memory.
target_compile_options(
  tessera_compile_options
  INTERFACE $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1500000>)
# g++ 12 sees these three where libtorch's small vectors, optionals and atomics
# are inlined into our code, and is wrong each time.
target_compile_options(
  tessera_compile_options
  INTERFACE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-restrict;-Wno-stringop-overflow>
)

# Compiles several sources of `target` at a time: reading headers takes most of
# the time of a small source.
function(tessera_use_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${TESSERA_UNITY}
                                             UNITY_BUILD_BATCH_SIZE 18)
endfunction()

if(TESSERA_SANITIZE)
  add_compile_options(-fsanitize=${TESSERA_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TESSERA_SANITIZE})
  if(TESSERA_SANITIZE MATCHES "undefined")
    # Inline code of torch's headers converts to enums and calls through casted
    # pointers freely; vptr needs the type info that torch's library hides.
    add_compile_options(-fno-sanitize=vptr)
  endif()
  if(TESSERA_SANITIZE MATCHES "thread")
    # Torch's headers have fences, which gcc's sanitizer warns that it ignores.
    add_compile_options(-Wno-tsan)
  endif()
endif()
