#!/bin/sh
# The experiment on one GPU, all of it. Give it again until every suite says "all is asked"; each call takes MINUTES (8)
# and a little more. What bench/results (or KEPT) has is not asked again, and PACK=FILE.jsonl.xz packs all rows at the end.
# Further words go to `homunculus eval`; readers of their own are asked for with --tune 6400, or --tune-seconds 20.
#   sh runs/experiment.sh [rows.jsonl [words ...]]
set -eu
cd "$(dirname "$0")/.."
export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF:-expandable_segments:True}" # what is written grows letter by letter
rows=${1:-out/experiment.jsonl}
[ $# -eq 0 ] || shift
kept=${KEPT-bench/results/experiment.jsonl.xz}
end=$(python -c "import time; print(int(time.time() + 60 * ${MINUTES:-8}))")
mkdir -p "$(dirname "$rows")"
[ -e "$rows" ] || [ ! -e "$kept" ] || python -m bench.pack "$kept" --out "$rows"

[ -z "${PACK:-}" ] || trap '[ ! -e "$rows" ] || python -m bench.pack "$rows" --out "$PACK"' EXIT

asked() { # asked LAUNCHER SUITE WORDS...: for as long as there is time
    launcher=$1 suite=$2
    shift 2
    left=$((end - $(date +%s)))
    [ $left -gt 0 ] || { echo "no time for $suite: give the command again" && exit 0; }
    $launcher -m homunculus eval --suite "$suite" --out "$rows" --workers "${WORKERS:-$drawing}" \
        --minutes "$((left / 60)).$((left % 60 * 10 / 60))" "$@"
}

# By several processes, of which one computes while others prepare; by one where seconds are counted.
processes=${PROCESSES:-3}
several="python -m torch.distributed.run --nproc-per-node $processes"
suites="main budgets,forgiving,ablations,turns,looks,large,unlike"
times="${TIMED:-main:8 budgets:3}"                      # a suite and the seconds for each method
case "$*" in *--tune*) suites=main,fewer times= ;; esac # a reader's tuning changes no time
case "$*" in *--tune-seconds*) several=python processes=1 ;; esac
drawing=$((($(nproc) - 1) / processes)) # cores for each process to draw images on
[ $drawing -gt 0 ] || drawing=1
for suite in ${SUITES:-$suites}; do
    asked "$several" "$suite" --no-cost "$@"
done
for timed in $times; do
    asked python "${timed%:*}" --cost-seconds "${timed#*:}" "$@"
done
