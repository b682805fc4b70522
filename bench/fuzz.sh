#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time each (default 20s).
# Usage: bench/fuzz.sh [TIME]
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-20s}
grep -rl --include='*_test.go' '^func Fuzz' . | sort | while read -r file; do
	dir=$(dirname "$file")
	grep -o '^func Fuzz[A-Za-z0-9_]*' "$file" | sed 's/^func //' | while read -r target; do
		echo "== $dir $target"
		# Making one interesting input small may take a minute by default, and is no attempt.
		go test "$dir" -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 100x
	done
done
