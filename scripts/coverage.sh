#!/usr/bin/env bash
# Which lines and branches of Python and C the suite runs, without the exhibits, in a scratch copy: both cores, the
# native one compiled for gcov. Prints one table and fails below the floors in scripts/coverage_report.py.
# Arguments go to pytest, instead of the rooms of the suite; REPORT=DIR keeps the data and pages of HTML there;
# CC (gcc) compiles, GCOV reads what it left.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONHOME VIRTUAL_ENV PYTHONPATH CENOTE_PURE

python=${PYTHON:-python3} cc=${CC:-gcc} gcov=${GCOV:-gcov}
report=${REPORT:+$(mkdir -p "$REPORT" && cd "$REPORT" && pwd)}
# Every room but those that read documents and sources, and the exhibits.
if [[ $# == 0 ]]; then
    read -ra rooms < <("$python" -c 'from tests.support.rooms import ROOMS
print(*(f"tests/{room}" for room, markers in ROOMS.items() if not {"exhibit", "once"} & {*markers}))')
    set -- "${rooms[@]}" tests/support
fi

say() { echo "cenote: $*" >&2; }

for program in "$cc" "$gcov"; do
    if ! command -v "$program" >/dev/null; then
        say "'$program' is missing; as root: apt-get install gcc, which brings gcov"
        exit 1
    fi
done
scripts/servers.sh

scratch=$(mktemp -d "${TMPDIR:-/tmp}/cenote-coverage.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch" # servers do not run as root
scripts/copy.sh "$scratch/cenote"
cd "$scratch/cenote"

CENOTE_PURE=1 scripts/venv.sh "$scratch/venv" "$python" coverage
run=$scratch/venv/bin/python
suffix=$("$run" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
say "compiling for gcov"
"$cc" -std=c11 -O0 -g -fPIC --coverage -fprofile-update=atomic -Isrc/cenote/include \
    -I"$("$run" -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
    -shared -o "src/cenote/_core/native$suffix" src/cenote/_native/unity.c
"$run" -c 'import cenote; assert cenote.core == "native", cenote.core'

# What is measured is in [tool.coverage] of pyproject.toml; the workers of pytest and other children are, too.
workers=()
[[ $(nproc 2>/dev/null || echo 1) == 1 ]] || workers=(-n 2 --dist loadfile)
measure() { "$run" -m coverage run -m pytest -q -p no:cacheprovider --timeout=600 "${workers[@]}" "$@"; }
failed=0
say "native core"
measure -m 'not untraced' "$@" || failed=$?
say "pure core"
CENOTE_PURE=1 measure -m 'not untraced and not once and not driver' "$@" || failed=$?
[[ $failed == 0 ]] || say "some tests failed; what they ran is counted all the same"

"$run" -m coverage combine -q
"$run" -m coverage json -q --ignore-errors -o "$scratch/python.json"
(cd "$scratch/cenote" && "$run" -m gcovr --gcov-executable "$gcov" --root src/cenote/_native \
    --json-summary "$scratch/c.json" ${report:+--html-details "$report/c.html"} . >/dev/null)
if [[ -n $report ]]; then
    "$run" -m coverage html -q --ignore-errors -d "$report/python"
    cp "$scratch/python.json" "$scratch/c.json" "$report"
fi
"$run" scripts/coverage_report.py "$scratch/python.json" "$scratch/c.json" || failed=$?
exit "$failed"
