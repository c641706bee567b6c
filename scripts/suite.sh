#!/usr/bin/env bash
# suite.sh PYTHON [pytest arguments]: the whole suite on both cores, and once on uvloop.
# The last run is the native core's, so that its closing line is the last one.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$1
shift
core=$("$python" -c 'import cenote; print(cenote.core)')

# Programs in processes of their own, and what no loop and no core has a part in: once is enough.
once=(docs pictures observability examples demo benchmarks placeholders analysis url imports proxy servers dashboard_browser
    c_api_fuzz)
# On the pure core: the pool, what watches it, and the conformance suite of the databases.
pools_only=(db_broken db_cancel db_isolation db_life db_sharing db_tasks)
# Long, and the loop has little part in them.
long=(chaos security db_cache db_template)
# On loops of their own, or on none.
own_loops=(model soak schedules)

without() {
    for name in "$@"; do
        echo "--ignore=tests/test_$name.py"
    done
}

note() { # 5: the arguments select no test in this run
    [[ $1 == 5 ]] || status=$1
}

say() { echo "cenote: $*" >&2; }

if [[ $core == native ]]; then
    log=$(mktemp)
    trap 'rm -f "$log"; kill "${pure:-}" 2>/dev/null || true' EXIT
    # Beside each other: there are two cores, and both mostly wait for servers.
    mapfile -t skipped < <(without "${once[@]}" "${long[@]}" "${pools_only[@]}")
    env CENOTE_PURE=1 "$python" -m pytest -q -p no:cacheprovider "${skipped[@]}" "$@" >"$log" 2>&1 &
    pure=$!
    status=0
    if "$python" -c 'import uvloop' 2>/dev/null; then
        say "native core on uvloop, and beside it the pure core"
        mapfile -t skipped < <(without "${once[@]}" "${long[@]}" "${own_loops[@]}")
        "$python" -m pytest -q --loop=uvloop "${skipped[@]}" "$@" || note $?
    fi
    wait "$pure" || note $?
    say "pure core"
    cat "$log"
    [[ $status == 0 ]] || exit "$status"
fi
say "$core core"
workers=()
if [[ $(nproc 2>/dev/null || echo 1) -gt 1 ]] && "$python" -c 'import xdist' 2>/dev/null; then
    workers=(-n 2 --dist loadfile)
fi
"$python" -m pytest "${workers[@]}" "$@"
