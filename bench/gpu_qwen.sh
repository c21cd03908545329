#!/bin/sh
# Everything about Qwen-VL that wants a GPU, in the order of importance; results go to the folder given, or out/.
# About 20 minutes on an H200. Each part leaves what it measured if it is cut short.
set -eu
cd "$(dirname "$0")/.."
out=${1:-out}
mkdir -p "$out"
part=${2:-all}
run() { echo "== $*"; "$@"; }

if [ "$part" = all ] || [ "$part" = check ]; then  # a minute: right before fast
    run python -m pytest -q -p no:cacheprovider tests/qwen/test_graphs.py tests/qwen/test_qwen_vl.py -m "gpu or not gpu"
fi
if [ "$part" = all ] || [ "$part" = squares ]; then
    run python -m bench.qwen_vl --requests 0 --modes graph eager --batches 8 1 --sides 2048 --seconds 0.5 --results "$out/qwen_vl.csv"
    run python -m bench.qwen_vl --requests 0 --modes graph eager --batches 8 1 --sides 1024 --seconds 0.5 --results "$out/qwen_vl.csv"
    run python -m bench.qwen_chat
fi
if [ "$part" = all ] || [ "$part" = mixed ]; then
    run python -m bench.qwen_vl --sides --batches 32 --requests 100 --seconds 0.5 --results "$out/qwen_vl.csv"
    run python -m bench.qwen_vl --requests 0 --batches 32 --sides 2048 1024 --seconds 0.5 --results "$out/qwen_vl.csv"
fi
if [ "$part" = all ] || [ "$part" = others ]; then
    run python -m bench.qwen_vl --models 4B 2B --batches 8 --requests 0 --sides 2048 1024 --seconds 0.5 --results "$out/qwen_vl.csv"
fi
