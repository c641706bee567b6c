#!/usr/bin/env bash
# constraints.sh [uv arguments]: resolve every development extra anew and write constraints.txt, one file for
# every supported Python and system. `--upgrade-package NAME` renews one package and leaves the others.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONHOME VIRTUAL_ENV

python=${PYTHON:-python3}
oldest=$(sed -n 's/^requires-python = ">=\(.*\)"$/\1/p' pyproject.toml)
[[ $# != 0 ]] || set -- --upgrade

scratch=$(mktemp -d "${TMPDIR:-/tmp}/cenote-constraints.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv "$scratch"
"$scratch/bin/python" -m pip install -qq --disable-pip-version-check uv

# Universal: versions that differ between Pythons or systems get environment markers.
"$scratch/bin/uv" pip compile --quiet --universal --python-version "$oldest" --system-certs \
    --extra dev --extra bench --extra coverage --no-annotate \
    --custom-compile-command 'make constraints' "$@" --output-file constraints.txt pyproject.toml
echo "cenote: constraints.txt has $(grep -c == constraints.txt) pins" >&2
