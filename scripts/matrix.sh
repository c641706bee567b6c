#!/usr/bin/env bash
# Runs the suite on every supported Python that is here.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "cenote: $*" >&2; }

find_python() {
    local candidate
    # A pyenv shim exists for versions that are not active, and then fails: run it to know.
    if candidate=$(command -v "python$1") && "$candidate" -c '' 2>/dev/null; then
        echo "$candidate"
    elif command -v pyenv >/dev/null; then
        candidate=$(ls -d "$(pyenv root)/versions/$1."*/bin/python 2>/dev/null | sort -V | tail -n 1)
        [[ -n $candidate ]] && echo "$candidate"
    else
        return 1
    fi
}

passed=() failed=() missing=()
for version in 3.11 3.12 3.13 3.14 3.15; do
    if ! python=$(find_python "$version"); then
        say "Python $version: not found"
        missing+=("$version")
        continue
    fi
    say "Python $version: $python"
    if ! scripts/venv.sh ".venv-$version" "$python" test; then
        failed+=("$version (install)")
        continue
    fi
    if scripts/suite.sh ".venv-$version/bin/python" "$@"; then
        passed+=("$version")
    else
        failed+=("$version")
    fi
done

say "passed: ${passed[*]:-none}; failed: ${failed[*]:-none}; not found: ${missing[*]:-none}"
[[ ${#failed[@]} == 0 && ${#passed[@]} != 0 ]]
