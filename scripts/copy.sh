#!/usr/bin/env bash
# copy.sh DIR: a copy of the source, as it is now, without anything that was generated.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p "$1"
if [[ -e .git ]] && command -v git >/dev/null; then
    # What is deleted and not yet committed is listed too.
    git ls-files -z --cached --others --exclude-standard |
        while IFS= read -r -d '' file; do [[ ! -e $file ]] || printf '%s\0' "$file"; done |
        tar --null --files-from=- -cf - | tar -xf - -C "$1"
else
    tar -cf - --exclude='.venv*' --exclude=.cache --exclude=build --exclude=dist --exclude='*.egg-info' \
        --exclude=__pycache__ --exclude='*.so' --exclude='.*_cache' --exclude=.hypothesis . |
        tar -xf - -C "$1"
fi
