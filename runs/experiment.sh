#!/bin/sh
# The experiment on one GPU, all of it. Give it again until every suite says "all is asked"; each call takes MINUTES (9).
# What bench/results keeps is not asked again. Further words go to `homunculus eval`, such as --tune 6400.
#   sh runs/experiment.sh [rows.jsonl [words ...]]
set -eu
cd "$(dirname "$0")/.."
rows=${1:-out/experiment.jsonl}
[ $# -eq 0 ] || shift
kept=bench/results/experiment.jsonl.xz
end=$(($(date +%s) + 60 * ${MINUTES:-9}))
mkdir -p "$(dirname "$rows")"
[ -e "$rows" ] || [ ! -e $kept ] || python -m bench.pack $kept --out "$rows"

asked() { # asked LAUNCHER SUITE WORDS...: for as long as there is time
    launcher=$1 suite=$2
    shift 2
    left=$((end - $(date +%s)))
    [ $left -gt 0 ] || { echo "no time for $suite: give the command again" && exit 0; }
    $launcher -m homunculus eval --suite "$suite" --out "$rows" --workers "${WORKERS:-4}" \
        --minutes "$((left / 60)).$((left % 60 * 10 / 60))" "$@"
}

# Answers by several processes, of which one computes while others prepare; times by one alone.
several="python -m torch.distributed.run --nproc-per-node ${PROCESSES:-3}"
for suite in ${SUITES:-main budgets forgiving,ablations,turns,looks}; do
    case "$*" in
    *--tune*) asked python "$suite" "$@" ;; # readers are tuned by one process
    *) asked "$several" "$suite" --no-cost "$@" && asked python "$suite" --cost-seconds "${SECONDS_EACH:-8}" "$@" ;;
    esac
done
