#!/usr/bin/env bash
# Builds, tests and measures on a machine with a GPU, offline: with the CUDA
# libtorch of `python3` (or of CMAKE_PREFIX_PATH), nvcc, CMake, Ninja and
# GoogleTest as they are there.
#
#   scripts/gpu.sh [build] [test] [sanitize] [bench] [fbgemm]
#                                                   (default: build test)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=build/cuda
steps=("$@")
if [ ${#steps[@]} -eq 0 ]; then steps=(build test); fi

build() {
  cmake --preset cuda -DTESSERA_EXAMPLES=OFF -DTESSERA_PYTHON="$(command -v python3)"
  cmake --build "$build" -j "$(nproc)" \
    --target tests_kernels tests_cuda bench_gpu
}

# What a test program reports, without how long it took.
report() {
  sed -E 's/ (time|timestamp)="[^"]*"//g' "$build/report_$1.xml"
}

# The kernels on the cases of the CPU's, then distributed tensors: twice, and the
# bits of their results must be the same. Last, two processes that share the GPU.
test_() {
  local run
  OMP_NUM_THREADS=4 "$build/tests/tests_kernels" --gtest_brief=1
  for run in 1 2; do
    OMP_NUM_THREADS=4 "$build/tests/tests_cuda" --gtest_brief=1 \
      --gtest_filter='-Cuda*Process*' --gtest_output="xml:$build/report_$run.xml"
  done
  grep -q 'bits' "$build/report_1.xml"
  cmp <(report 1) <(report 2)
  echo "both runs have the same bits"
  CUDA_LAUNCH_BLOCKING=1 "$build/tests/tests_cuda" --gtest_brief=1 \
    --gtest_filter='GpuErrors.*'
  OMP_NUM_THREADS=4 scripts/launch.py --nproc-per-node 2 \
    "$build/tests/tests_cuda" --gtest_brief=1 --gtest_filter='CudaProcesses.*'
  OMP_NUM_THREADS=4 scripts/launch.py --nproc-per-node 1 \
    "$build/tests/tests_cuda" --gtest_brief=1 --gtest_filter='CudaOneProcess.*'
}

# Random trials are many: a few cases of every kernel are enough here.
sanitize() {
  local tool
  # Too many launches for racecheck, of kernels without shared memory or of CUB's.
  local more=':GpuKernels.SortsByRows*:GpuReduce.HasTheBits*'
  for tool in memcheck racecheck; do
    OMP_NUM_THREADS=4 compute-sanitizer --tool "$tool" --error-exitcode 3 \
      "$build/tests/tests_kernels" --gtest_brief=1 \
      --gtest_filter='*gpu*-*RandomTrials*:*IndexOutside*'
    OMP_NUM_THREADS=4 compute-sanitizer --tool "$tool" --error-exitcode 3 \
      "$build/tests/tests_cuda" --gtest_brief=1 \
      --gtest_filter="GpuKernels.StridedBags:GpuKernels.Renorm:GpuKernels.ManyOwners:GpuKernels.InAGraph:GpuRandom.*$more"
    more=''
  done
}

for step in "${steps[@]}"; do
  case "$step" in
    build) build ;;
    test) test_ ;;
    sanitize) sanitize ;;
    bench) "$build/benchmarks/gpu/bench_gpu" ;;
    fbgemm) python3 benchmarks/gpu/fbgemm.py ;;
    *)
      sed -n '2,8p' "$0" >&2
      exit 2
      ;;
  esac
done
