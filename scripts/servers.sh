#!/usr/bin/env bash
# servers.sh [redis|postgresql]: makes sure that the server which the tests (redis, the default) or the
# benchmarks (postgresql) start exists, or says what will be skipped without it.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "cenote: $*" >&2; }

case ${1:-redis} in
    redis)
        package=redis-server brew=redis
        found() { command -v redis-server >/dev/null; }
        skipped() {
            echo "the tests that use it are skipped, in:" \
                "$(grep -l '\bredis_server\b' tests/test_*.py | tr '\n' ' ')"
        }
        ;;
    postgresql)
        package=postgresql brew=postgresql
        # Debian keeps its programs outside of the PATH.
        found() { command -v postgres >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; }
        skipped() { echo "the benchmarks of psycopg_pool and asyncpg are skipped"; }
        ;;
    *) say "unknown server '$1'" && exit 2 ;;
esac

! found || exit 0

if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    say "$package is missing. To get it: sudo apt-get install $package (or: brew install $brew)"
    say "until then $(skipped)"
    exit 0
fi

say "installing $package"
# Debian would start a system-wide server; the tests start their own.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi
log=$(mktemp)
if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y \
    --no-install-recommends -o DPkg::Lock::Timeout=120 "$package"; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    say "$package could not be installed; $(skipped)"
fi
rm -f "$log"
