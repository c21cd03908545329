#!/bin/sh
# More training from the weights of a speedrun, much as the model we ship had by an earlier recipe. Give it again until it says that it is done; each call takes nine minutes.
# FACES=DIR, a folder that runs/faces.py filled, gives it more typefaces than five.
set -eu
cd "$(dirname "$0")/.."
from=${1:-out/speedrun/weights}
out=${2:-out/long}
python -m homunculus train --preset longer --weights "$from" --out "$out" --minutes "${MINUTES:-9}" ${FACES:+--faces "$FACES"}
