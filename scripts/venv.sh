#!/usr/bin/env bash
# venv.sh DIR PYTHON plain|test|dev|bench|docs|coverage: DIR has cenote and that extra installed, in the versions
# of constraints.txt; it is made again only if it is stale.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONHOME VIRTUAL_ENV

dir=$1 python=$2 extra=$3

say() { echo "cenote: $*" >&2; }

case $extra in
    plain) target=. covers="plain" ;;
    test) target='.[test]' covers="plain test" ;;
    dev) target='.[dev]' covers="plain test docs dev" ;;
    bench) target='.[bench]' covers="plain bench" ;;
    docs) target='.[docs]' covers="plain docs" ;;
    coverage) target='.[coverage]' covers="plain test coverage" ;;
    *) say "unknown extra '$extra'" && exit 2 ;;
esac

if ! version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then
    say "'$python' does not run; install Python 3.11 or later, or name one: make PYTHON=/path/to/python3"
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    say "'$python' is Python $version; 3.11 or later is needed: make PYTHON=/path/to/python3"
    exit 1
fi

# Contents, not times: a checkout or a moved directory changes neither in a way that make would see.
base="$PWD $("$python" -c 'import os, sys; print(os.path.realpath(sys.executable), sys.version)' | tr '\n' ' ')"
wanted="$base ${CENOTE_PURE:-} $(grep '^__version__' src/cenote/__init__.py) $(cat pyproject.toml constraints.txt setup.py src/cenote/_native/*.[ch] src/cenote/include/*.h | cksum)"

if [[ $(cat "$dir/.base" 2>/dev/null) == "$base" ]] && "$dir/bin/python" -c '' 2>/dev/null; then
    [[ $(cat "$dir/.has-$extra" 2>/dev/null) != "$wanted" ]] || exit 0
else
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
            say "installing python$version-venv"
            { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y \
                --no-install-recommends "python$version-venv"; } >/dev/null
        else
            say "Python $version has no ensurepip; as root: apt-get install python$version-venv"
            exit 1
        fi
    fi
    say "making $dir with Python $version"
    rm -rf "$dir"
    "$python" -m venv "$dir"
    printf '%s' "$base" >"$dir/.base"
fi

say "installing $target into $dir"
"$dir/bin/python" -m pip install -qq --disable-pip-version-check -c constraints.txt -e "$target"
for level in $covers; do
    printf '%s' "$wanted" >"$dir/.has-$level"
done
