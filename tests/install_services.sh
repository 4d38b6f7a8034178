#!/bin/sh
# Installs the services that tests start themselves, where they are missing: redis-server, prometheus, nginx and chromium, for which apt-get
# needs root, and beside them a Redis 8 and PostgreSQL, without which the tests of vector sets and of ledgers in PostgreSQL are skipped.
set -eu
sh "$(dirname "$0")/install_redis8.sh" >/dev/null || true
missing=""
command -v redis-server >/dev/null 2>&1 || missing="redis-server"
command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1 || missing="$missing prometheus"
command -v nginx >/dev/null 2>&1 || missing="$missing nginx-light"
command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || missing="$missing chromium"
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    [ "$missing" = " postgresql" ] && exit 0
    echo "The tests start a Redis of their own: install redis-server (https://redis.io/docs/latest/operate/oss_and_stack/install/), prometheus (https://prometheus.io/download/), nginx and chromium." >&2
    exit 1
fi
as_root=""
[ "$(id -u)" = 0 ] || as_root="sudo"
echo "Installing $missing ..."
# A service that starts by itself would take the port and outlive the tests.
$as_root apt-get update -qq
for name in $missing; do
    DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 $as_root apt-get install -y -qq --no-install-recommends "$name" >/dev/null ||
        [ "$name" = postgresql ]
done
