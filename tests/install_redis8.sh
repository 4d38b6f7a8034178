#!/bin/sh
# Redis 8 for the tests of vector sets, where the system's own is older: Debian 13's packages with the libraries they want,
# unpacked into a folder of the user's cache. Needs apt-get and no root; changes nothing of the system. Prints the program's
# path. Says why and returns 1 where it cannot be had within two minutes: those tests are then skipped.
set -eu
folder=${XDG_CACHE_HOME:-$HOME/.cache}/slipstream-tests/redis8
program=$folder/redis-server
give_up() {
    echo "No Redis 8 ($1): tests of vector sets will be skipped." >&2
    exit 1
}
is_redis8() { "$1" --version 2>/dev/null | grep -Eq 'v=([89]|[1-9][0-9])\.'; }

for found in "$(command -v redis-server || true)" "$program"; do
    if [ -n "$found" ] && is_redis8 "$found"; then echo "$found"; exit 0; fi
done
for tool in apt-get dpkg dpkg-deb timeout; do
    command -v "$tool" >/dev/null 2>&1 || give_up "there is no $tool"
done
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r "$keys" ] || give_up "the keys of Debian's archive are not in $keys"

# Built in a folder of its own and moved when it works: an interrupted run leaves nothing that looks finished.
mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/packages" "$work/files"
# The mirror that this machine already uses, if it names one.
mirror=$(grep -Ehos 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d/* | head -n 1 | tr -d ' ')
echo "deb [signed-by=$keys] ${mirror:-http://deb.debian.org/debian} trixie main" >"$work/sources.list"
get() {
    timeout 60 apt-get -qq -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=- \
        -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work" -o Dir::Cache::Archives="$work/archives" \
        -o APT::Sandbox::User=root -o Acquire::Retries=1 -o Acquire::http::Timeout=15 "$@" >&2
}
echo "Fetching Redis 8 for the tests ..." >&2
get update || give_up "Debian 13's list of packages cannot be fetched"
packages="libatomic1 libc6 libcap2 libgcc-s1 libjemalloc2 liblzf1 libssl3t64 libstdc++6 libsystemd0 libzstd1 redis-tools zlib1g"
# shellcheck disable=SC2086  # one argument for each package
(cd "$work/packages" && get download $packages) || give_up "Debian 13's packages cannot be fetched"
for package in "$work"/packages/*.deb; do
    dpkg-deb --extract "$package" "$work/files" || give_up "$package cannot be unpacked"
done

# All of Redis is one program that looks at the name by which it is called; its name here must therefore be the server's.
libraries=$(dirname "$(find "$work/files" -name 'libc.so.6' | head -n 1)")
loader=$(find "$work/files" -name 'ld-linux*.so.*' | head -n 1)
[ -e "$loader" ] || give_up "its packages hold no loader"
mkdir -p "$work/redis/lib"
cp -L "$libraries"/*.so* "$work/redis/lib/"
cp -L "$loader" "$work/redis/lib/loader"
cp -L "$work/files/usr/bin/redis-check-rdb" "$work/redis/lib/redis-server"
cat >"$work/redis/redis-server" <<'LAUNCHER'
#!/bin/sh
lib=$(dirname "$0")/lib
exec "$lib/loader" --library-path "$lib" "$lib/redis-server" "$@"
LAUNCHER
chmod +x "$work/redis/redis-server"
is_redis8 "$work/redis/redis-server" || give_up "the unpacked program does not start"
rm -rf "$folder"
mv "$work/redis" "$folder"
echo "$program"
