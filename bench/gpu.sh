#!/bin/sh
# Every check and benchmark that wants a CUDA device, in one go: sh bench/gpu.sh [folder for the results]
# Needs torch, pytest and hypothesis and nothing else; shapes go unchecked where beartype is absent.
set -u
cd "$(dirname "$0")/.."
results="${1:-out}"
mkdir -p "$results"
export PYTHONPATH=. PYTHONUNBUFFERED=1
status=0
run() { # name, command...: the output is kept and shown, the status remembered
    file="$results/$1.txt"
    shift
    "$@" >"$file" 2>&1 || status=1
    cat "$file"
}
python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' || { echo "no CUDA device here"; exit 1; }
run gpu-tests python3 -m pytest -p no:cacheprovider -m gpu tests
run gpu-allocation python3 -m bench.allocation --device cuda
run gpu-hiz python3 -m bench.hiz --device cuda
exit $status
