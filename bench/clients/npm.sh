#!/usr/bin/env bash
# Installs the packages of a suite, if they are not those of its package-lock.json already.
#   bench/clients/npm.sh openai-node
set -euo pipefail
cd "$(dirname "$0")/${1:?which suite}"
if ! cmp -s package-lock.json node_modules/.krater-lock; then
	npm ci --no-audit --no-fund
	cp package-lock.json node_modules/.krater-lock
fi
