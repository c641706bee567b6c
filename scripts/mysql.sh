#!/usr/bin/env bash
# mysql.sh [FOLDER]: puts a real MySQL server from Debian unstable into a folder (.cache/mysql), where the tests
# find it (tests/support/servers.py). Nothing outside of that folder is changed, and nothing is started. Needs root for
# debootstrap, about 500 MB, and the network.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:-${CENOTE_MYSQL:-.cache/mysql}}
mirror=${DEBIAN_MIRROR:-} # empty: the one that debootstrap knows
say() { echo "cenote: $*" >&2; }

if [[ -x $folder/usr/sbin/mysqld ]]; then
    exit 0
fi
if [[ $(id -u) != 0 ]]; then
    say "a tree of Debian is made by root: sudo make mysql"
    exit 1
fi
if ! command -v debootstrap >/dev/null; then
    say "installing debootstrap"
    apt-get update -qq && apt-get install -qq -y --no-install-recommends debootstrap >/dev/null
fi

say "getting MySQL from Debian unstable into $folder"
mkdir -p "$(dirname "$folder")"
new=$(mktemp -d "$folder.XXXXXX")
log=$new.log
trap 'rm -rf "$new" "$log"' EXIT
if ! debootstrap --variant=minbase --include=mysql-server-core unstable "$new" ${mirror:+"$mirror"} >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    say "debootstrap failed"
    exit 1
fi
rm -rf "$new"/var/cache/apt/archives/*.deb "$new"/var/lib/apt/lists/*
chmod 755 "$new" # the server does not run as root
mv "$new" "$folder"
say "MySQL is in $folder"
