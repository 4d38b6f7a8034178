#!/bin/sh
# Installs the services that tests start themselves, where they are missing: redis-server, for which apt-get needs root,
# and a Redis 8 beside it, without which the tests of vector sets are skipped.
set -eu
sh "$(dirname "$0")/install_redis8.sh" >/dev/null || true
command -v redis-server >/dev/null 2>&1 && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "The tests start a Redis of their own: install redis-server (https://redis.io/docs/latest/operate/oss_and_stack/install/)." >&2
    exit 1
fi
as_root=""
[ "$(id -u)" = 0 ] || as_root="sudo"
echo "Installing redis-server ..."
# A service that starts by itself would take the port and outlive the tests.
$as_root apt-get update -qq
DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 $as_root apt-get install -y -qq --no-install-recommends redis-server >/dev/null
