#!/bin/sh
# Regenerates every assembly file and stub of kernels/cpu, and SUMS: the hashes of the generator's
# sources and of what it wrote. With "check" it generates into a temporary folder and fails when
# something differs. With "sums" it compares hashes alone, which takes no time: sources or outputs
# that changed since the last generation are found.
set -eu
cd "$(dirname "$0")"
sums() { LC_ALL=C sha256sum *.go go.mod go.sum gen.sh ../*_amd64.s ../*/*_amd64.s ../stubs_amd64.go ../*/stubs_amd64.go; }
case "${1:-}" in
check)
	out=$(mktemp -d)
	trap 'rm -rf "$out"' EXIT
	for p in . dot axpy convert norm exp rope qrows qdot blockdot delta index qtile btile; do mkdir -p "$out/$p"; done
	go run . "$out"
	(cd "$out" && find . -type f) | while read -r f; do
		cmp "$out/$f" "../$f" || { echo "$f: run kernels/cpu/_gen/gen.sh" >&2; exit 1; }
	done
	;;
sums)
	sums | diff SUMS - >&2 || { echo "kernels/cpu/_gen: run gen.sh" >&2; exit 1; }
	;;
*)
	go run . ..
	sums >SUMS
	;;
esac
