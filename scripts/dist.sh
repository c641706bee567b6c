#!/usr/bin/env bash
# Builds the sdist, a binary wheel and the pure wheel into dist/, and tests what they install: each in
# an empty environment outside the tree, with the tests of the sdist. Arguments go to pytest.
# The binary wheel is for this machine; those for others are made by cibuildwheel (pyproject.toml).
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONHOME VIRTUAL_ENV PYTHONPATH CENOTE_PURE CENOTE_NATIVE
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1

python=${PYTHON:-python3} out=$PWD/dist
say() { echo "cenote: $*" >&2; }
die() { say "$*" && exit 1; }

scratch=$(mktemp -d "${TMPDIR:-/tmp}/cenote-dist.XXXXXX")
[[ -n ${KEEP:-} ]] || trap 'rm -rf "$scratch"' EXIT
copy=$scratch/copy
scripts/copy.sh "$copy"
(cd "$copy" && find . -type f | sed 's|^\./||' | sort) >"$scratch/wanted"

# -- build -------------------------------------------------------------------------------------------

"$python" -m venv "$scratch/build"
"$scratch/build/bin/python" -m pip install -qq build
build() { "$scratch/build/bin/python" -m build --outdir "$out" "$@" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }; }

# What must not get in: the leftovers of a working tree.
mkdir -p "$copy"/{src/cenote,tests,examples,benchmarks}/__pycache__ "$copy"/{build,examples/build}
for junk in src/cenote/_core/{native.so,native.o,native.pyd,build_failure.txt} tests/x.so examples/build/x.o \
    {src/cenote,tests,examples,benchmarks}/__pycache__/x.pyc build/x.o examples/x.pyo; do
    echo junk >"$copy/$junk"
done

rm -rf "$out"
say "building the sdist"
build --sdist "$copy"
sdist=$(echo "$out"/cenote-*.tar.gz)
[[ -f $sdist ]] || die "there is no single sdist in dist/"
mkdir "$scratch/unpacked"
tar -xzf "$sdist" -C "$scratch/unpacked" --strip-components=1
(cd "$scratch/unpacked" && find . -type f | sed 's|^\./||' | sort) >"$scratch/found"

say "building the wheels from the sdist"
CENOTE_NATIVE=1 build --wheel "$scratch/unpacked"
rm -rf "$scratch/unpacked/build"
CENOTE_PURE=1 build --wheel "$scratch/unpacked"

# -- what is in them ---------------------------------------------------------------------------------

missing=$(comm -23 "$scratch/wanted" "$scratch/found" | grep -vxE '\.gitignore|\.github/.*' || true)
[[ -z $missing ]] || die "the sdist lacks:"$'\n'"$missing"
surplus=$(comm -13 "$scratch/wanted" "$scratch/found" | grep -vxE 'PKG-INFO|setup\.cfg|src/cenote\.egg-info/.*' || true)
[[ -z $surplus ]] || die "the sdist has what is not source:"$'\n'"$surplus"

tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
binary=$(echo "$out"/cenote-*-"$tag-$tag"-*.whl) pure=$(echo "$out"/cenote-*-py3-none-any.whl)
[[ -f $binary ]] || die "there is no binary wheel: $(ls "$out")"
[[ -f $pure ]] || die "there is no pure wheel: $(ls "$out")"
[[ $(ls "$out" | wc -l) == 3 ]] || die "there is more than an sdist and two wheels: $(ls "$out")"
list() { "$python" -m zipfile --list "$1" | awk 'NR > 1 { print $1 }'; }
list "$binary" | grep -qE '^cenote/_core/native\..*(so|pyd)$' || die "the binary wheel has no native core"
! list "$pure" | grep -E '\.(so|pyd)$' || die "the pure wheel has a compiled file"
for wheel in "$binary" "$pure"; do
    list "$wheel" | grep -qx 'cenote/include/cenote.h' || die "$wheel has no cenote.h"
    list "$wheel" | grep -qx 'cenote/py.typed' || die "$wheel has no py.typed"
    ! list "$wheel" | grep -E '\.(c|py[co])$|__pycache__|build_failure|^tests/' || die "$wheel has what it should not"
done

# -- what they install -------------------------------------------------------------------------------

cd "$scratch"
CHECK='
import os, sys, cenote
assert cenote.core == sys.argv[1], cenote.core
assert os.path.realpath(cenote.__file__).startswith(os.path.realpath(sys.prefix)), cenote.__file__
assert os.path.isfile(os.path.join(cenote.get_include(), "cenote.h"))
'
try() { # NAME ARCHIVE native|pure [VARIABLE=VALUE]: installed, it is what it should be
    local name=$1 archive=$2 core=$3
    shift 3
    say "installing $(basename "$archive") ($core)"
    "$python" -m venv "$scratch/$name"
    env "$@" "$scratch/$name/bin/python" -m pip install -qq --no-cache-dir "cenote[test] @ file://$archive"
    env "$@" "$scratch/$name/bin/python" -W error -c "$CHECK" "$core"
}
try wheel-native "$binary" native
try wheel-pure "$pure" pure
try sdist-native "$sdist" native CENOTE_NATIVE=1
try sdist-pure "$sdist" pure CENOTE_PURE=1

say "installing without a compiler"
"$python" -m venv "$scratch/failed"
CC=/bin/false "$scratch/failed/bin/python" -m pip install -qq --no-cache-dir "$sdist"
said=$("$scratch/failed/bin/python" -c 'import cenote; print(cenote.core)' 2>&1)
[[ $said == *"could not be compiled"* && $said == *$'\n'pure ]] || die "nobody was told:"$'\n'"$said"

suite() { # NAME [VARIABLE=VALUE]
    local name=$1
    shift
    rm -rf "$scratch/source"
    mkdir "$scratch/source"
    tar -xzf "$sdist" -C "$scratch/source" --strip-components=1
    (cd "$scratch/source" && env "$@" "$scratch/$name/bin/python" -m pytest -q -p no:cacheprovider "${arguments[@]}")
}
arguments=("$@")
say "the tests of the sdist, on what it installed: native core"
suite sdist-native
say "the tests of the sdist, on what it installed: pure core"
arguments+=(--ignore tests/docs/test_examples.py --ignore tests/exhibits)
suite sdist-pure CENOTE_PURE=1
say "in dist/: $(ls "$out" | tr '\n' ' ')"
