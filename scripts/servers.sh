#!/usr/bin/env bash
# servers.sh [redis] [postgresql] [mariadb] [pgbouncer] [chromium] [prometheus] [go] [java] [node]: makes sure that the
# programs which the tests and the benchmarks start (default: all but the last three, of `make bench-languages`) exist, or
# says how to get them and what will be skipped without them.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "cenote: $*" >&2; }

# Debian keeps some of them outside of the PATH of an ordinary user.
exists() {
    PATH=$PATH:/usr/sbin:/usr/local/sbin command -v "$1" >/dev/null ||
        compgen -G "/usr/lib/postgresql/*/bin/$1" >/dev/null
}

found() {
    case $1 in
        redis) exists redis-server ;;
        postgresql) exists postgres && exists initdb ;;
        mariadb) exists mariadbd && exists mariadb-install-db ;;
        pgbouncer) exists pgbouncer ;;
        chromium) exists chromium && exists chromedriver ;;
        prometheus) exists prometheus && exists promtool ;;
        go) exists go && [[ -d /usr/share/gocode/src/github.com/jackc/pgx/v4 ]] ;;
        java) exists javac && [[ -e /usr/share/java/HikariCP.jar && -e /usr/share/java/postgresql.jar ]] ;;
        node) exists node && exists npm ;;
        *)
            say "unknown server '$1'; there are: redis postgresql mariadb pgbouncer chromium prometheus go java node"
            exit 2
            ;;
    esac
}

package() {
    case $1 in
        redis | mariadb) echo "$1-server" ;;
        chromium) echo chromium chromium-driver ;;
        go) echo golang-go golang-github-jackc-pgx-v4-dev ;;
        java) echo default-jdk-headless libhikaricp-java libpostgresql-jdbc-java libslf4j-java ;;
        node) echo nodejs npm ;;
        *) echo "$1" ;;
    esac
}

# By the names of the fixtures; pgbouncer stands before a PostgreSQL server, `backends` are each of several.
skipped() {
    local fixtures files benchmarks=
    case $1 in
        redis) fixtures=redis_server ;;
        postgresql)
            fixtures='postgres_server|pgbouncer|backends'
            benchmarks='; the benchmarks of psycopg_pool and asyncpg are, too'
            ;;
        mariadb) fixtures='mariadb_server|backends' ;;
        pgbouncer) fixtures=pgbouncer ;;
        chromium) fixtures=browser ;;
        prometheus) fixtures='prometheus_server|promtool' ;;
        go | java | node) echo "without $1 its pools are skipped" && return ;;
    esac
    files=$(grep -rlwE "$fixtures" --include="test_*.py" tests | sort | paste -sd ' ') || true
    echo "without $1 the tests that use it are skipped, in: ${files:-no file}$benchmarks"
}

servers=("$@")
[[ $# != 0 ]] || servers=(redis postgresql mariadb pgbouncer chromium prometheus)
if [[ $# == 0 && ! -x ${CENOTE_MYSQL:-.cache/mysql}/usr/sbin/mysqld ]]; then
    say "MySQL is tested as MariaDB: what differs in a real MySQL is not covered (make mysql)"
fi
missing=() packages=()
for server in "${servers[@]}"; do
    if ! found "$server"; then
        missing+=("$server")
        read -ra names <<<"$(package "$server")"
        packages+=("${names[@]}")
    fi
done
[[ ${#missing[@]} != 0 ]] || exit 0

if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    say "missing: ${missing[*]}. To get them: sudo apt-get install ${packages[*]}" \
        "(or: brew install ${missing[*]})"
    for server in "${missing[@]}"; do say "$(skipped "$server")"; done
    exit 0
fi

say "installing ${packages[*]}"
# Debian would start system-wide servers; the tests start their own.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi
log=$(mktemp)
if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y \
    --no-install-recommends -o DPkg::Lock::Timeout=120 "${packages[@]}"; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    say "not all could be installed: ${packages[*]}"
fi
rm -f "$log"
for server in "${missing[@]}"; do
    found "$server" || say "$(skipped "$server")"
done
