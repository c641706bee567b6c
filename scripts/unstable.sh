#!/usr/bin/env bash
# unstable.sh [FOLDER]: makes a scratch system of Debian unstable in a folder (build/unstable): CPython 3.14 and 3.15,
# PyPy, and the newest PostgreSQL, MariaDB, Valkey and PgBouncer. `make matrix` runs the suite in it. Nothing outside of
# the folder is changed, and nothing is started. Needs root for debootstrap, about 2 GB, and the network. MySQL is not
# in it: its packages exclude those of MariaDB, so it has a tree of its own (scripts/mysql.sh).
#
# unstable.sh --enter FOLDER SOURCE MYSQL COMMAND...: runs a command in it, in the folder /cenote, which is SOURCE here;
# the tree of MySQL, if there is one, is /mysql. What that mounts is gone when the command has ended.
set -euo pipefail

say() { echo "cenote: $*" >&2; }

inside='
root=$1 source=$2 mysql=$3
shift 3
mount -t proc proc "$root/proc" 2>/dev/null || mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind "$source" "$root/cenote"
[ ! -d "$mysql" ] || mount --bind "$mysql" "$root/mysql"
exec chroot "$root" env -C /cenote "$@"
'

if [[ ${1:-} == --enter ]]; then
    shift
    exec unshare --mount --propagation private sh -c "$inside" enter "$@"
fi

cd "$(dirname "$0")/.."
folder=${1:-${CENOTE_UNSTABLE:-build/unstable}}
mirror=${DEBIAN_MIRROR:-} # empty: the one that debootstrap knows
packages=(
    python3.14-venv python3.14-dev python3.15-venv python3.15-dev pypy3 pypy3-venv
    gcc libc6-dev libpq5 git openssl ca-certificates make
    postgresql-18 mariadb-server valkey-server pgbouncer
)

if [[ -e $folder/cenote && $(cat "$folder/etc/cenote-packages" 2>/dev/null) == "${packages[*]}" ]]; then
    exit 0
fi
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    say "a system of Debian unstable is made by root on Debian"
    exit 1
fi
if ! command -v debootstrap >/dev/null; then
    say "installing debootstrap"
    apt-get update -qq && apt-get install -qq -y --no-install-recommends debootstrap >/dev/null
fi

mkdir -p "$(dirname "$folder")"
log=$folder.log
if [[ ! -x $folder/usr/bin/apt-get || ! -e $folder/var/lib/dpkg/status ]]; then
    say "getting Debian unstable into $folder; about 3 minutes"
    rm -rf "$folder"
    if ! debootstrap --variant=minbase unstable "$folder" ${mirror:+"$mirror"} >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        say "debootstrap failed"
        exit 1
    fi
fi
mkdir -p "$folder/cenote" "$folder/mysql"
# The tests start servers themselves. A mirror may be some days old.
printf '#!/bin/sh\nexit 101\n' >"$folder/usr/sbin/policy-rc.d"
chmod +x "$folder/usr/sbin/policy-rc.d"
printf 'Acquire::Check-Valid-Until "false";\n' >"$folder/etc/apt/apt.conf.d/99cenote"
say "installing in it: ${packages[*]}"
root=$(realpath "$folder")
if ! {
    scripts/unstable.sh --enter "$root" "$PWD" - apt-get update -qq
    scripts/unstable.sh --enter "$root" "$PWD" - env DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq -y --no-install-recommends "${packages[@]}"
} >>"$log" 2>&1; then
    tail -n 20 "$log" >&2
    say "apt-get failed"
    exit 1
fi
# What this machine trusts, pip trusts there too.
if [[ -e /etc/ssl/certs/ca-certificates.crt ]]; then
    cp /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/"
fi
printf '%s' "${packages[*]}" >"$folder/etc/cenote-packages"
say "Debian unstable is in $folder"
