#!/usr/bin/env bash
# suite.sh PYTHON [pytest arguments]: the whole suite on both cores, and once on uvloop.
# Which tests are repeated where is said by their markers (pyproject.toml). Nothing that failed is
# run a second time. The last run is the native core's, so that its closing line is the last one.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$1
shift
core=$("$python" -c 'import cenote; print(cenote.core)')

say() { echo "cenote: $*" >&2; }

# run NAME WORKERS [pytest arguments]. They mostly wait for servers, so there are more than cores.
run() {
    local cache=$caches/$1 status=0 workers=()
    [[ $xdist != yes ]] || workers=(-n "$2" --dist loadfile)
    shift 2
    "$python" -m pytest -o cache_dir="$cache" "${workers[@]}" "$@" || status=$?
    [[ $status == 5 ]] || return "$status" # 5: the arguments select no test in this run
}

caches=$(mktemp -d)
trap 'kill "${pure:-}" 2>/dev/null || true; rm -rf "$caches"' EXIT
xdist=no
if [[ $(nproc 2>/dev/null || echo 1) -gt 1 ]] && "$python" -c 'import xdist' 2>/dev/null; then
    xdist=yes
fi
if [[ $core == native ]]; then
    CENOTE_PURE=1 run pure 1 -q -m 'not once and not driver' "$@" >"$caches/log" 2>&1 &
    pure=$!
    status=0
    if "$python" -c 'import uvloop' 2>/dev/null; then
        say "1 of 3: native core on uvloop, and beside it 2 of 3: pure core"
        run uvloop 2 -q --loop=uvloop -m 'not once and not own_loop' "$@" || status=$?
    fi
    wait "$pure" || status=$?
    say "2 of 3: pure core"
    cat "$caches/log"
    [[ $status == 0 ]] || exit "$status"
fi
say "3 of 3: $core core"
run "$core" 3 "$@"
