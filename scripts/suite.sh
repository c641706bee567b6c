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
groups=()
stop() {
    for group in "${groups[@]}"; do kill -- "-$group" 2>/dev/null || true; done
    rm -rf "$caches"
}
trap stop EXIT
xdist=no
if [[ $(nproc 2>/dev/null || echo 1) -gt 1 ]] && "$python" -c 'import xdist' 2>/dev/null; then
    xdist=yes
fi
if [[ $core != native ]]; then
    say "$core core"
    run "$core" 3 "$@"
    exit
fi

# In the background, all at once: most tests wait for a server most of the time. Each is a group of
# processes of its own (set -m), so that the end of this script ends its workers, too.
background() {
    local name=$1 status=0
    shift
    run "$name" "$@" >"$caches/$name.log" 2>&1 || status=$?
    echo "$status" >"$caches/$name.status"
}
: >"$caches/native.log"
failed=0
set -m
background native 3 "$@" &
native=$!
CENOTE_PURE=1 background pure 1 -q -m 'not once and not driver and not coreless' "$@" &
pure=$!
groups=("$native" "$pure")
set +m
if "$python" -c 'import uvloop' 2>/dev/null; then
    say "1 of 3: native core on uvloop, and beside it the others"
    run uvloop 2 -q --loop=uvloop -m 'not once and not own_loop' "$@" || failed=$?
fi
wait "$pure" || failed=$?
say "2 of 3: pure core"
cat "$caches/pure.log"
say "3 of 3: native core"
tail -n +1 -f --pid="$native" "$caches/native.log"
wait "$native" || failed=$?
for status in "$(cat "$caches/pure.status")" "$(cat "$caches/native.status")"; do
    [[ $status == 0 ]] || failed=$status
done
exit "$failed"
