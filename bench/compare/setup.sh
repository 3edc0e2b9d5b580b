#!/usr/bin/env bash
# Makes a virtual environment with PyTorch: setup.sh DIR (outside this tree).
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: setup.sh DIR" >&2; exit 2; }
[ -x "$1/bin/python" ] || python3 -m venv "$1"
"$1/bin/python" -c 'import torch' 2>/dev/null || "$1/bin/pip" install -q torch numpy
"$1/bin/python" -c 'import torch; print("PyTorch", torch.__version__)'
