#!/usr/bin/env bash
# Run the digits example twice with `watchglass run`: once with a learning rate that is far too high, which watchglass
# stops, and once with one that fits. The script, train.py, does not import watchglass.
#
#   demo.sh [FOLDER]      folder for the two runs and their reports; existing ones are removed first
set -euo pipefail
demo=${1:-runs/demo}
script=$(dirname "$0")/train.py
stopped=86 # exit status of a run that watchglass stopped on request

bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    bold=$'\033[1m' plain=$'\033[0m'
fi
show() { printf '\n%s$ %s%s\n' "$bold" "$*" "$plain"; "$@"; }

rm -rf "$demo/broken" "$demo/healthy" "$demo/broken.html" "$demo/healthy.html"
mkdir -p "$demo"

echo "1. A broken run: its learning rate is far too high."
status=0
show watchglass run --run "$demo/broken" --stop-on error --report "$demo/broken.html" \
    "$script" --fault learning-rate || status=$?
if [ "$status" -ne "$stopped" ]; then
    echo "demo: the broken run should have been stopped (exit status $stopped) but ended with $status" >&2
    exit 1
fi

echo
echo "2. The same script with a learning rate that fits."
show watchglass run --run "$demo/healthy" --report "$demo/healthy.html" "$script"
show watchglass check "$demo/healthy"

echo
echo "Reports, to open in a browser (no network needed): $demo/broken.html and $demo/healthy.html"
