#!/usr/bin/env bash
# Make .venv and install watchglass into it, editable, with the extra that is asked for.
#
#   tools/setup_venv.sh example     what `make demo` needs
#   tools/setup_venv.sh dev         what tests and linters need (contains example)
#   tools/setup_venv.sh frameworks  the same, with TensorFlow, Keras and JAX (contains dev)
#
# Assumes a Python of 3.10 or later and pip, nothing else. A second call finds its stamp and returns at once.
set -euo pipefail
cd "$(dirname "$0")/.."

extra=${1:-dev}
python=${PYTHON:-python3}
venv=.venv

fail() { echo "setup: $*" >&2; exit 1; }

case $extra in
    example | dev | frameworks) ;;
    *) fail "the extra must be example, dev or frameworks but got '$extra'" ;;
esac
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
    || fail "needs Python 3.10 or later as '$python'; name another one: make PYTHON=python3.11 ..."

# A change of any of these, or a move of the checkout (the editable install holds its path), installs again.
wanted=$({ cat pyproject.toml constraints.txt tools/setup_venv.sh; pwd; } | cksum)
stamps=("$venv/installed-$extra" "$venv/installed-frameworks")
[ "$extra" = frameworks ] || stamps+=("$venv/installed-dev")
for stamp in "${stamps[@]}"; do
    if [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
        exit 0
    fi
done

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    rm -rf "$venv"
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "setup: making $venv with python -m venv"
        "$python" -m venv "$venv"
    else
        echo "setup: this Python has no ensurepip, so python -m venv cannot work; making $venv with virtualenv from pip"
        borrowed=$(mktemp -d)
        trap 'rm -rf "$borrowed"' EXIT
        "$python" -m pip install --quiet --quiet --disable-pip-version-check --target "$borrowed" virtualenv
        PYTHONPATH=$borrowed "$python" -m virtualenv --quiet "$venv"
    fi
fi

echo "setup: installing watchglass and its '$extra' extra into $venv (once; a few minutes with a slow connection)"
rm -f "$venv"/installed-*
# One call for everything, so that the constraint decides which build of PyTorch is taken before anything asks for it.
# Of PyTorch's many modules few are imported: each is compiled when it is, which takes half as long as all of them here.
"$venv/bin/python" -m pip install --quiet --quiet --disable-pip-version-check --no-compile --constraint constraints.txt \
    --editable ".[$extra]"
if [ "$extra" != example ]; then
    # Only its source is read: installed without ROCm, it would break packages that try to import it, as Ray does.
    rm -rf "$venv/sources"
    "$venv/bin/python" -m pip install --quiet --quiet --disable-pip-version-check --no-compile --no-deps \
        --target "$venv/sources" amdsmi==7.0.2
fi
echo "$wanted" >"$venv/installed-$extra"
echo "setup: done"
