#!/usr/bin/env bash
# suite.sh PYTHON [pytest arguments]: the whole suite on both cores, and once on uvloop.
# The last run is the native core's, so that its closing line is the last one.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$1
shift
core=$("$python" -c 'import cenote; print(cenote.core)')

# Programs in processes of their own: once is enough.
programs=(--ignore tests/test_examples.py --ignore tests/test_demo.py --ignore tests/test_benchmarks.py)

run() {
    echo "cenote: $1" >&2
    shift
    "$@"
}

if [[ $core == native ]]; then
    run "pure core" env CENOTE_PURE=1 "$python" -m pytest -q "${programs[@]}" "$@"
    if "$python" -c 'import uvloop' 2>/dev/null; then
        run "native core on uvloop" "$python" -m pytest -q --loop=uvloop "${programs[@]}" "$@"
    fi
fi
run "$core core" "$python" -m pytest "$@"
