#!/usr/bin/env bash
# Installs what the executors in Python, TypeScript and Go need, into folders that git ignores, and
# compiles those that are compiled. Safe to run again; then it takes a few seconds.
set -euo pipefail
cd "$(dirname "$0")"

for tool in python3 node npm go; do
    command -v "$tool" >/dev/null || { echo "the examples need $tool on PATH" >&2; exit 1; }
done

[ -x python/.venv/bin/pip ] || python3 -m venv python/.venv
python/.venv/bin/pip install --quiet --disable-pip-version-check --requirement python/requirements.txt

# nuid asks for Node 22 in its manifest; it runs on 20.
(cd typescript && npm install --no-audit --no-fund --loglevel=error && npm run --silent build)

(cd go && go vet . && go build -o bin/executor .)
