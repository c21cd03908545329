#!/bin/sh
# Every check and benchmark that wants a CUDA device, in one go: sh bench/gpu.sh [folder for the results]
# Needs torch, triton, pytest and hypothesis and nothing else; shapes go unchecked where beartype is absent.
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
run gpu-tests python3 -m pytest -p no:cacheprovider -m "gpu or kernels" tests
run gpu-fuzz python3 -m tests.kernels.fuzz
if command -v compute-sanitizer >/dev/null; then
    # Without the caching allocator every tensor is an allocation of its own, so a read past its end is seen.
    for tool in memcheck racecheck; do
        PYTORCH_NO_CUDA_MEMORY_CACHING=1 run "gpu-$tool" \
            compute-sanitizer --tool "$tool" --error-exitcode 1 python3 -m tests.kernels.sanitize
    done
else
    echo "without compute-sanitizer, which comes with the CUDA toolkit"
fi
run gpu-kernels python3 -m bench.kernels
run gpu-texture python3 -m bench.texture
run gpu-cut python3 -m bench.cut --device cuda
run gpu-allocation python3 -m bench.allocation --device cuda
run gpu-hiz python3 -m bench.hiz --device cuda
exit $status
