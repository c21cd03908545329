#!/bin/sh
# Every stage of training, tiny: it shows that all of it runs, and teaches nothing. Minutes on two cores.
set -eu
cd "$(dirname "$0")/.."
out=${1:-out/cpu}
python -m homunculus train --preset tiny --out "$out" --device cpu --workers 0
python -m homunculus bench answers --weights "$out/weights" --family documents --questions 8 --budget 64 --out "$out/answers.jsonl"
