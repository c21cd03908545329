#!/bin/sh
# Every check and benchmark that wants a CUDA device, in one go: sh bench/gpu.sh [folder for the results]
# Needs torch, pytest and hypothesis and nothing else; shapes go unchecked where beartype is absent.
set -u
cd "$(dirname "$0")/.."
results="${1:-out}"
mkdir -p "$results"
export PYTHONPATH=. PYTHONUNBUFFERED=1
status=0
python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' || { echo "no CUDA device here"; exit 1; }
python3 -m pytest -p no:cacheprovider -m gpu tests 2>&1 | tee "$results/gpu-tests.txt"
grep -Eq '^[0-9]+ passed|, [0-9]+ passed' "$results/gpu-tests.txt" && ! grep -Eq '[0-9]+ (failed|error)' "$results/gpu-tests.txt" || status=1
python3 -m bench.allocation --device cuda 2>&1 | tee "$results/gpu-allocation.txt" || status=1
exit $status
