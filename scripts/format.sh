#!/usr/bin/env bash
# Formats every C++ file with the pinned clang-format; with --check, only says
# which differ, and fails if any does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

formatter=.venv/bin/clang-format
if [ ! -x "$formatter" ]; then formatter=clang-format; fi
pinned=$(sed -n 's/^clang-format==//p' scripts/requirements.txt)
if ! "$formatter" --version | grep -qF "$pinned"; then
  echo "format: need clang-format $pinned (scripts/setup.sh installs it)" >&2
  exit 1
fi

mode=(-i)
if [ "${1:-}" = --check ]; then mode=(--dry-run --Werror); fi
folders=()
for folder in include src testing tests examples benchmarks tools python; do
  if [ -d "$folder" ]; then folders+=("$folder"); fi
done
find "${folders[@]}" -type f \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
  xargs -0 -r "$formatter" "${mode[@]}"
