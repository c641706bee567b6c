#!/usr/bin/env bash
# suite.sh PYTHON [pytest arguments]: the whole suite on both cores, and once on uvloop.
# The last run is the native core's, so that its closing line is the last one.
# STRICT=1: nothing that failed is run a second time.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$1
shift
core=$("$python" -c 'import cenote; print(cenote.core)')

# Programs in processes of their own, and what no loop and no core has a part in: once is enough.
once=(docs pictures observability examples demo benchmarks placeholders analysis url imports proxy servers dashboard_browser
    c_api_fuzz typing build)
# On the pure core: the pool, what watches it, and the conformance suite of the databases.
pools_only=(db_broken db_cancel db_drivers db_isolation db_life db_sharing db_tasks)
# Long, and the loop has little part in them.
long=(chaos security db_cache db_template)
# On loops of their own, or on none.
own_loops=(model soak schedules)

without() {
    for name in "$@"; do
        echo "--ignore=tests/test_$name.py"
    done
}

say() { echo "cenote: $*" >&2; }

# run NAME [pytest arguments]. A few that failed are run once more, alone: the tests use real servers,
# and machines stall. Nothing is hidden by it: the first failure is printed with its traceback, and the
# closing lines tell of both. STRICT=1 does without.
run() {
    local cache=$caches/$1 status=0
    shift
    "$python" -m pytest -o cache_dir="$cache" "${workers[@]}" "$@" || status=$?
    if [[ $status == 1 && -z ${STRICT:-} ]] && worth_another_run "$cache/v/cache/lastfailed"; then
        status=0
        "$python" -m pytest -o cache_dir="$cache" --last-failed "$@" || status=$?
    fi
    [[ $status == 5 ]] || return "$status" # 5: the arguments select no test in this run
}

worth_another_run() {
    "$python" - "$1" <<'EOF'
import json, pathlib, sys

failed = json.loads(pathlib.Path(sys.argv[1]).read_text())
if len(failed) > 3:
    sys.exit("cenote: too many failures to be chance")
print("cenote: FAILED, and run once more:", *failed, sep="\n  ", file=sys.stderr)
EOF
}

caches=$(mktemp -d)
trap 'kill "${pure:-}" 2>/dev/null || true; rm -rf "$caches"' EXIT
workers=()
if [[ $core == native ]]; then
    # Beside each other: there are two cores, and both mostly wait for servers.
    mapfile -t skipped < <(without "${once[@]}" "${long[@]}" "${pools_only[@]}")
    CENOTE_PURE=1 run pure -q "${skipped[@]}" "$@" >"$caches/log" 2>&1 &
    pure=$!
    status=0
    if "$python" -c 'import uvloop' 2>/dev/null; then
        say "native core on uvloop, and beside it the pure core"
        mapfile -t skipped < <(without "${once[@]}" "${long[@]}" "${own_loops[@]}")
        run uvloop -q --loop=uvloop "${skipped[@]}" "$@" || status=$?
    fi
    wait "$pure" || status=$?
    say "pure core"
    cat "$caches/log"
    [[ $status == 0 ]] || exit "$status"
fi
say "$core core"
if [[ $(nproc 2>/dev/null || echo 1) -gt 1 ]] && "$python" -c 'import xdist' 2>/dev/null; then
    workers=(-n 2 --dist loadfile)
fi
run "$core" "$@"
