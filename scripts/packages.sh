# Sourced by ./quickstart and ./check: installs the Debian or Ubuntu packages that are missing, and says what and why.
# ensure_packages "NAME: reason" ...
ensure_packages() {
  if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-query >/dev/null 2>&1; then
    if command -v cmake >/dev/null 2>&1 && command -v c++ >/dev/null 2>&1; then
      echo "apt-get is not here: going on with what is installed; needed are the equivalents of: $(printf '%s, ' "${@%%:*}" | sed 's/, $//')." >&2
      return 0
    fi
    echo "apt-get is not here. limpid needs a C++20 compiler, CMake >= 3.25 and the equivalents of these Debian packages: $(printf '%s, ' "${@%%:*}" | sed 's/, $//')." >&2
    return 1
  fi
  local entry name missing=()
  for entry in "$@"; do
    name=${entry%%:*}
    if ! dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed'; then
      echo "installing $name:${entry#*:}"
      missing+=("$name")
    fi
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
      echo "not root and no sudo: please install ${missing[*]} and run this again." >&2
      return 1
    fi
    sudo=(sudo)
  fi
  "${sudo[@]}" apt-get update -qq &&
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

BUILD_PACKAGES=(
  "g++: the C++20 compiler"
  "cmake: configures the build"
  "ninja-build: runs the build"
  "libeigen3-dev: QR for orthogonal start values, oracles in tests"
  "libhwy-dev: SIMD with the instruction set chosen at run time"
  "nlohmann-json3-dev: JSON of settings and results"
  "libcli11-dev: arguments of the limpid command"
  "zlib1g-dev: gzip data files, checksums"
  "libpng-dev: PNG images"
  "libjpeg-dev: JPEG images"
  "libjs-chart.js: curves in the pages of limpid mem view"
  "dataset-fashion-mnist: the data of the main job"
)
TEST_PACKAGES=(
  "doctest-dev: the test framework"
  "libonnx-testdata: operator cases made by others, an independent oracle"
  "ccache: compiles the library once for all rungs"
  "chromium: opens the pages of limpid mem view"
  "python3: drives it"
)
