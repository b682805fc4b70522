#!/usr/bin/env bash
# Shows that bench/gate.sh fails for a slower commit, and only for one: in a repository with
# one benchmark, a commit that does four times the work fails, and one that does the same work
# passes.
set -euo pipefail
gate=$(realpath "$(dirname "$0")/gate.sh")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
git init -q
git config user.name gate
git config user.email gate@example.org
printf 'module gate\n\ngo 1.24\n' >go.mod
# commit NAME ROUNDS: a benchmark that takes a time in proportion to ROUNDS.
commit() {
	cat >gate_test.go <<-EOF
		package gate

		import "testing"

		var sum uint64 // $1

		func BenchmarkWork(b *testing.B) {
			for b.Loop() {
				for i := range uint64($2) {
					sum = sum*31 + i
				}
			}
		}
	EOF
	git add go.mod gate_test.go
	git commit -q -m "$1"
	git tag "$1"
}
printf 'build/\n' >.gitignore
commit first 20000
commit equal 20000
commit slow 80000
expect() {
	local want=$1 base=$2 head=$3 got=pass
	git checkout -q "$head"
	BASE=$base ROUNDS=8 TIME=20ms "$gate" '. ^BenchmarkWork$' >"$dir/log" 2>&1 || got=fail
	if [ "$got" = fail ] && ! grep -q "^slower: Work" "$dir/log"; then got=error; fi
	if [ "$got" != "$want" ]; then
		cat "$dir/log"
		echo "gate_check: $head against $base: $got, want $want" >&2
		exit 1
	fi
}
expect fail equal slow
expect pass slow equal
BASE=first "$gate" './missing ^BenchmarkWork$' >"$dir/log" 2>&1 && { echo "gate_check: a gate that compares nothing passes" >&2; exit 1; }
echo "gate_check: the gate fails for a slower commit and passes a faster one"
