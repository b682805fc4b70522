#!/bin/sh
# Fetches what a list names and unpacks it: fetch.sh LIST DIR. The files are wheels of the
# Python package index whose hashes the list pins; nothing of them runs but the compiler
# itself. DIR appears whole or not at all.
set -eu
list=$1 dir=$2
tmp=$dir.tmp
rm -rf "$tmp"
mkdir -p "$tmp/wheels"
python3 -m pip download --quiet --no-deps --only-binary=:all: --require-hashes --disable-pip-version-check \
	--dest "$tmp/wheels" --requirement "$list" >&2
for w in "$tmp"/wheels/*.whl; do
	python3 -m zipfile -e "$w" "$tmp"
done
rm -r "$tmp/wheels"
find "$tmp" -path '*/bin/*' -type f -exec chmod +x {} +
rm -rf "$dir"
mv "$tmp" "$dir"
