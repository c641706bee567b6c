#!/usr/bin/env bash
# Makes sure that the servers which the tests start exist, or says what will be skipped without them.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "cenote: $*" >&2; }

! command -v redis-server >/dev/null || exit 0

if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    say "redis-server is missing. To get it: sudo apt-get install redis-server (or: brew install redis)"
    say "until then the tests that use it are skipped, in:" \
        "$(grep -l '\bredis_server\b' tests/test_*.py | tr '\n' ' ')"
    exit 0
fi

say "installing redis-server"
# Debian would start a system-wide server; the tests start their own.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi
log=$(mktemp)
if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y \
    --no-install-recommends -o DPkg::Lock::Timeout=120 redis-server; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    say "redis-server could not be installed; the tests that use it are skipped, in:" \
        "$(grep -l '\bredis_server\b' tests/test_*.py | tr '\n' ' ')"
fi
rm -f "$log"
