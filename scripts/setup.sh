#!/usr/bin/env bash
# Installs what is missing to build and test on Debian or Ubuntu: packages by
# apt-get (as root or with sudo), and .venv with the pinned Python packages. A
# libtorch in CMAKE_PREFIX_PATH is taken instead of the one from PyPI. Run again,
# it finds everything there and does nothing. With --bench also what only the
# benchmarks need.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(
  g++ make cmake ninja-build ccache python3 python3-dev python3-venv
  libgtest-dev libgmock-dev libgloo-dev
)
case "${1:-}" in
  "") ;;
  --bench)
    packages+=(libbenchmark-dev libcli11-dev nlohmann-json3-dev valgrind)
    ;;
  *)
    echo "usage: scripts/setup.sh [--bench]" >&2
    exit 2
    ;;
esac

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    echo "setup: not a Debian system; needed are: ${packages[*]}" >&2
    return
  fi
  local missing=() package
  for package in "${packages[@]}"; do
    if ! dpkg-query -W -f='${Status}' "$package" 2>/dev/null |
      grep -q 'ok installed'; then
      missing+=("$package")
    fi
  done
  if [ ${#missing[@]} -eq 0 ]; then return; fi

  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "setup: run as root, or install sudo, to get: ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  echo "setup: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends "${missing[@]}"
}

# True where CMAKE_PREFIX_PATH leads to a libtorch.
has_libtorch() {
  local prefixes prefix
  IFS=':;' read -r -a prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]}"; do
    if [ -e "$prefix/share/cmake/Torch/TorchConfig.cmake" ] ||
      [ -e "$prefix/Torch/TorchConfig.cmake" ]; then
      return 0
    fi
  done
  return 1
}

# The first word of "$1" --version that looks like a version is at least "$2".
at_least() {
  local version
  version=$("$1" --version 2>/dev/null | grep -oE '[0-9]+\.[0-9]+' | head -1)
  [ "$(printf '%s\n%s\n' "$2" "$version" | sort -V | head -1)" = "$2" ]
}

install_environment() {
  local wanted stamp=.venv/.tessera-installed
  wanted=$(grep -v '^#' scripts/requirements.txt)
  if has_libtorch; then
    wanted=$(grep -v -e '^torch==' -e '^numpy==' <<<"$wanted")
  fi
  # Older distributions have a CMake that does not know our presets.
  if ! at_least cmake 3.25; then wanted+=$'\ncmake==3.31.6'; fi

  if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then return; fi
  if [ ! -x .venv/bin/python ]; then
    echo "setup: making .venv"
    python3 -m venv .venv
  fi
  echo "setup: installing into .venv:" $wanted
  # Modules are compiled when they are imported: few of torch's ever are.
  .venv/bin/python -m pip install -q --no-compile -r /dev/stdin <<<"$wanted"
  echo "$wanted" >"$stamp"
}

install_packages
install_environment
