#!/bin/sh
# The model from nothing, on one H200: 24 minutes. Give it again until it says that it is done; each call takes nine.
# FACES=DIR, a folder that runs/faces.py filled, gives it more typefaces than five.
set -eu
cd "$(dirname "$0")/.."
out=${1:-out/speedrun}
python -m homunculus train --preset small --out "$out" --minutes "${MINUTES:-9}" ${FACES:+--faces "$FACES"}
