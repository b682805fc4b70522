#!/bin/sh
# Regenerates every assembly file and stub of kernels/cpu. With "check" it
# generates into a temporary folder and fails when something differs.
set -eu
cd "$(dirname "$0")"
if [ "${1:-}" != check ]; then
	exec go run . ..
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for p in . dot axpy convert norm exp rope qrows qdot blockdot delta qtile btile; do mkdir -p "$out/$p"; done
go run . "$out"
(cd "$out" && find . -type f) | while read -r f; do
	cmp "$out/$f" "../$f" || { echo "$f: run kernels/cpu/_gen/gen.sh" >&2; exit 1; }
done
