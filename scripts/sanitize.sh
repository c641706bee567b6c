#!/usr/bin/env bash
# A native core with AddressSanitizer, UndefinedBehaviorSanitizer and LeakSanitizer, in a scratch copy:
# the tests, hostile programs for the C API, mixed cycles, and chaos on real servers.
# Arguments go to pytest, and then nothing but the tests is run. PARTS="tests fuzz soak chaos" chooses,
# SEED repeats, SECONDS_EACH is how long the chaos of each driver takes; CC (gcc or compatible) compiles,
# KEEP=1 leaves the copy behind.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONHOME VIRTUAL_ENV PYTHONPATH CENOTE_PURE

python=${PYTHON:-python3} cc=${CC:-gcc} seed=${SEED:-$RANDOM} seconds=${SECONDS_EACH:-15}
if [[ $# != 0 ]]; then parts=tests; else parts=${PARTS:-tests fuzz soak chaos}; fi
flags=(-std=c11 -O1 -g -Wall -Wextra -Werror -fPIC -fno-omit-frame-pointer
    -fsanitize=address,undefined -fno-sanitize-recover=all)

say() { echo "cenote: $*" >&2; }

if [[ $(uname -s) != Linux ]]; then
    say "sanitizers are preloaded here, which only Linux does as needed"
    exit 1
fi
if ! command -v "$cc" >/dev/null; then
    say "'$cc' is missing; install gcc, or name a compatible compiler: make sanitize CC=/path/to/gcc"
    exit 1
fi
library=$("$cc" -print-file-name=libasan.so)
if [[ $library != /* ]]; then
    say "'$cc' has no libasan; install it (Debian: it comes with gcc) or name another compiler with CC="
    exit 1
fi
[[ $parts != *tests* && $parts != *chaos* ]] || scripts/servers.sh redis postgresql mariadb pgbouncer

scratch=$(mktemp -d "${TMPDIR:-/tmp}/cenote-sanitize.XXXXXX")
[[ -n ${KEEP:-} ]] || trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch" # servers do not run as root
copy=$scratch/cenote
scripts/copy.sh "$copy"
cd "$copy"

CENOTE_PURE=1 scripts/venv.sh "$scratch/venv" "$python" test
run=$scratch/venv/bin/python
suffix=$("$run" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')

compile() { # SOURCE DIR: the core that is there, beside its sources
    "$cc" "${flags[@]}" -I"$("$run" -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
        -I"$1/cenote/include" -shared -o "$1/cenote/_core/native$suffix" "$1/cenote/_native/unity.c"
}
say "compiling with ${flags[*]}"
compile src

# The interpreter was not built with the sanitizer, so its library must come first; Python's own
# allocator would hide what happens inside its arenas. Leaks are looked for where leaks.py says so:
# at its end, CPython leaves things that are not ours. Other programs are started without all this.
sanitized() {
    env LD_PRELOAD="$library" PYTHONMALLOC=malloc UBSAN_OPTIONS=print_stacktrace=1 \
        ASAN_OPTIONS=detect_leaks=1:leak_check_at_exit=0:abort_on_error=0:allocator_may_return_null=1 \
        "$run" -X faulthandler "$@"
}
hunted() { sanitized -m tests.exhibits.leaks "$@"; }

sanitized -c 'import cenote; assert cenote.core == "native", cenote.core'
# A sanitizer that does not see anything must not pass for a clean core.
overflow='import ctypes; ctypes.string_at(ctypes.create_string_buffer(64), 1 << 20)'
if [[ $(sanitized -c "$overflow" 2>&1 || true) != *'AddressSanitizer: heap-buffer-overflow'* ]]; then
    say "the sanitizer does not work: it let a heap overflow pass"
    exit 1
fi
if [[ $parts != tests ]]; then # a core that forgets to free its ring
    mkdir "$scratch/leaky"
    cp -r src/cenote "$scratch/leaky/"
    sed -i '/PyMem_Free(core->ring);$/{N;/tp_free(core)/s/^[^\n]*\n//}' \
        "$scratch/leaky/cenote/_native/core_type.c"
    compile "$scratch/leaky"
    if [[ $(PYTHONPATH=$scratch/leaky hunted tests.exhibits.soak --cycles 500 2>&1 || true) != *LEAKED*ring_reserve* ]]; then
        say "the leak hunting does not work: it let a leak pass that was planted"
        exit 1
    fi
    rm -r "$scratch/leaky"
fi

if [[ $parts == *tests* ]]; then
    say "running the tests"
    # Not those of programs and texts in which the native core has no part; -s: the sanitizer reports
    # on stderr just before it ends the process.
    skipped=(-m 'not coreless')
    # What was freed is kept for long, so resident memory says nothing here.
    skipped+=(--deselect=tests/sql/test_cache.py::test_a_stream_takes_no_memory)
    sanitized -m pytest -s -q --timeout=600 -p no:cacheprovider "${skipped[@]}" "$@"
fi
if [[ $parts == *fuzz* ]]; then
    say "hostile programs, seed $seed"
    for collector in 0 1; do # by steps, and in the middle of everything
        hunted tests.exhibits.fuzz --seed "$seed" --programs 1500 --collector "$collector" --last "$scratch/last" || {
            status=$?
            [[ $status == 1 ]] || cat "$scratch/last"
            exit $status
        }
    done
fi
if [[ $parts == *soak* ]]; then
    say "mixed cycles, seed $seed"
    hunted tests.exhibits.soak --seed "$seed" --cycles 100000
fi
if [[ $parts == *chaos* ]]; then
    say "chaos, seed $seed"
    for driver in asyncpg psycopg mysql; do
        hunted tests.exhibits.chaos --seed "$seed" --driver "$driver" --seconds "$seconds" --tasks 300
    done
    hunted tests.exhibits.poison --seed "$seed" --operations 20000
fi
say "the sanitizers found nothing"
