#!/usr/bin/env bash
# The pool tests on a native core with AddressSanitizer and UndefinedBehaviorSanitizer, in a scratch
# copy. Arguments go to pytest; CC (gcc or compatible) compiles, KEEP=1 leaves the copy behind.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONHOME VIRTUAL_ENV PYTHONPATH CENOTE_PURE

python=${PYTHON:-python3} cc=${CC:-gcc}
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

scratch=$(mktemp -d "${TMPDIR:-/tmp}/cenote-sanitize.XXXXXX")
[[ -n ${KEEP:-} ]] || trap 'rm -rf "$scratch"' EXIT
copy=$scratch/cenote
scripts/copy.sh "$copy"
cd "$copy"

CENOTE_PURE=1 scripts/venv.sh "$scratch/venv" "$python" test
run=$scratch/venv/bin/python
native=src/cenote/_core/native$("$run" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
say "compiling with ${flags[*]}"
"$cc" "${flags[@]}" -I"$("$run" -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
    -Isrc/cenote/_core/include -shared -o "$native" src/cenote/_core/native.c

# The interpreter was not built with the sanitizer, so its library must come first; Python's own
# allocator would hide what happens inside its arenas.
export LD_PRELOAD=$library PYTHONMALLOC=malloc
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1

"$run" -c 'import cenote; assert cenote.core == "native", cenote.core'
# A sanitizer that does not see anything must not pass for a clean core.
overflow='import ctypes; ctypes.string_at(ctypes.create_string_buffer(64), 1 << 20)'
if [[ $("$run" -c "$overflow" 2>&1 || true) != *'AddressSanitizer: heap-buffer-overflow'* ]]; then
    say "the sanitizer does not work: it let a heap overflow pass"
    exit 1
fi
say "running the pool tests"
# -s: the sanitizer reports on stderr just before it ends the process.
"$run" -X faulthandler -m pytest -s -q --timeout=600 -p no:cacheprovider \
    --ignore=tests/test_examples.py --ignore=tests/test_demo.py --ignore=tests/test_benchmarks.py "$@"
say "the sanitizers found nothing"
