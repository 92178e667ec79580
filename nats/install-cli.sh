#!/bin/sh
# Installs the `nats` command line at the version that the tests use, into nats/.bin/, which git
# ignores. Needs Go. All that is said goes to stderr, the path to stdout.
set -eu

VERSION=v0.5.0

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
installed="$here/.bin/nats"

say() { printf 'nats/install-cli.sh: %s\n' "$*" >&2; }

if [ -x "$installed" ] && [ "$("$installed" --version 2>/dev/null)" = "$VERSION" ]; then
    printf '%s\n' "$installed"
    exit 0
fi
if ! command -v go >/dev/null 2>&1; then
    say "Go is needed to build the nats command line; install it and call this again"
    exit 1
fi
say "building nats $VERSION (a minute or two)"
mkdir -p "$here/.bin"
work=$(mktemp -d "$here/.bin/.cli.XXXXXX")
trap 'rm -rf "$work"' EXIT
GOBIN="$work" GOFLAGS=-mod=mod go install -ldflags "-X main.version=$VERSION" "github.com/nats-io/natscli/nats@$VERSION"
mv -f "$work/nats" "$installed"
say "installed $("$installed" --version 2>/dev/null) as $installed"
printf '%s\n' "$installed"
