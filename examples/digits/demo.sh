#!/usr/bin/env bash
# Train the digits example twice through `watchglass run`: once with a learning rate far too high, stopped as soon as
# that is known, and once as it should be. The script that is trained, train.py, knows nothing of watchglass.
#
#   demo.sh [FOLDER]      where the two runs and their reports go; what is there is removed first
set -euo pipefail
demo=${1:-runs/demo}
script=$(dirname "$0")/train.py
stopped=86 # exit status of a training that watchglass stopped because it was asked to

bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    bold=$'\033[1m' plain=$'\033[0m'
fi
show() { printf '\n%s$ %s%s\n' "$bold" "$*" "$plain"; "$@"; }

rm -rf "$demo/broken" "$demo/healthy" "$demo/broken.html" "$demo/healthy.html"
mkdir -p "$demo"

echo "1. A training that is broken: its learning rate is far too high."
status=0
show watchglass run --run "$demo/broken" --stop-on error --report "$demo/broken.html" \
    "$script" --fault learning-rate || status=$?
if [ "$status" -ne "$stopped" ]; then
    echo "demo: the broken training should have been stopped (exit status $stopped) but ended with $status" >&2
    exit 1
fi

echo
echo "2. The same training with a learning rate that fits."
show watchglass run --run "$demo/healthy" --report "$demo/healthy.html" "$script"
show watchglass check "$demo/healthy"

echo
echo "Reports, to open in a browser (no network needed): $demo/broken.html and $demo/healthy.html"
