#!/usr/bin/env bash
# Compares the speed of this commit with an earlier one and fails when a benchmark has become
# slower by more than 5 %. Both are built in worktrees of their own, and their benchmarks run
# in turn, so that a change of the machine's speed meets both. Of some 90 benchmarks on a busy
# machine a few look slower by chance: packages with such benchmarks are measured once more,
# alone, and a benchmark is slower when both measurements say so.
#
#   BASE=COMMIT bench/gate.sh                    the benchmarks below
#   BASE=COMMIT bench/gate.sh 'PACKAGE REGEXP'...   others
#
# BASE is a commit, by default origin/main. ROUNDS (10) is how often each benchmark runs, for
# TIME (0.2s) each. The working tree has to be committed. Results go to build/gate.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
base=$(git rev-parse --verify "${BASE:-origin/main}^{commit}") head=$(git rev-parse HEAD)
rounds=${ROUNDS:-10} time=${TIME:-0.2s}
benchstat=golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
benches=("$@")
if [ $# -eq 0 ]; then
	benches=(
		'./scheduler ^Benchmark(Decode|Ahead|LongPrompt|Mixed)$'
		'./scheduler/kvblocks ^BenchmarkBlock$'
		'./scheduler/dispatch ^BenchmarkDecide$'
		'./actors ^BenchmarkActorStep$'
		'./actors/placement ^BenchmarkDecode$'
		'./stages/direct ^Benchmark(Decode|Prefill)$'
		'./stages/sample ^BenchmarkNext$/151936/(greedy|temperature|top_k=50|top_p=0.9|penalty)$'
		'./stages/text/chat ^BenchmarkRender$'
		'./stages/text/tokenizer ^Benchmark(Encode|Stream)$/krater-tiny/(prose|code)'
		'./kernels/cpu ^Benchmark(Step|NodeRun|TeamRun)$'
		'./kernels/cpu/dot ^BenchmarkTile$/avx/bf16=true/m[14]/k2048'
		'./kernels/cpu/qdot ^BenchmarkTile$/avx/int/g128/m[14]$'
		'./transport/server ^Benchmark(ChatStream|Chunk)$'
	)
fi
git diff --quiet HEAD || { echo "gate: the working tree has changes that are not committed" >&2; exit 2; }

out=$PWD/build/gate
rm -rf "$out"
mkdir -p "$out"
finish() {
	for side in base head; do git worktree remove --force "$out/$side" 2>/dev/null || true; done
}
trap finish EXIT
git worktree prune
for side in base head; do
	git worktree add -q --detach "$out/$side" "${!side}"
	for i in "${!benches[@]}"; do
		(cd "$out/$side" && go test -c -vet=off -o "$out/$side-$i.test" "${benches[i]%% *}") >>"$out/build.log" 2>&1 || true
	done
done

# run SIDE I: one round of a benchmark, in its package's folder.
run() {
	local side=$1 i=$2
	(cd "$out/$side/${benches[i]%% *}" && "$out/$side-$i.test" -test.run '^$' -test.bench "${benches[i]#* }" -test.benchtime "$time") >>"$out/$side.txt"
}
# measure I...: every round of these benchmarks.
measure() {
	local i round side order
	for i in "$@"; do
		for ((round = 0; round < rounds; round++)); do
			if ((round % 2)); then order="head base"; else order="base head"; fi
			for side in $order; do run "$side" "$i"; done
		done
	done
}

# compare NAME prints a report, and writes the names of slower benchmarks to slower-NAME.txt.
# A row of the report: name, base, its range, head, its range, change ("+7.1%", "~" for none), p.
# The geometric mean has no p.
compare() {
	local stat=(go run "$benchstat" -alpha 0.01 -filter '.unit:sec/op' base="$out/base.txt" head="$out/head.txt")
	"${stat[@]}" | tee "$out/report-$1.txt"
	"${stat[@]:0:3}" -format csv "${stat[@]:3}" 2>"$out/warnings.txt" >"$out/report-$1.csv"
	awk -F, -v slower="$out/slower-$1.txt" '
		$7 ~ /^p=/ { compared++ }
		$7 ~ /^p=/ && $6 ~ /^\+/ && $6 + 0 > 5 { print "slower: " $1 " " $6 " (" $7 ")"; print $1 >slower; n++ }
		END {
			print compared + 0 " benchmarks compared, " n + 0 " slower by more than 5 %"
			exit compared == 0
		}' "$out/report-$1.csv"
}

present=()
for i in "${!benches[@]}"; do
	if [ -e "$out/base-$i.test" ] && [ -e "$out/head-$i.test" ]; then
		present+=("$i")
	else
		echo "left out: ${benches[i]%% *} is not in both commits, or has no tests there"
	fi
done
measure "${present[@]}"
[ -e "$out/head.txt" ] || { echo "gate: nothing could be compared; see $out/build.log" >&2; exit 2; }

compare first
[ -e "$out/slower-first.txt" ] || exit 0

echo "gate: measuring again what looks slower"
again=()
for i in "${present[@]}"; do
	names=$("$out/head-$i.test" -test.list '^Benchmark' | sed 's/^Benchmark//')
	if grep -qxF "$names" <(sed 's/[/-].*//' "$out/slower-first.txt"); then again+=("$i"); fi
done
rm "$out/base.txt" "$out/head.txt"
measure "${again[@]}"
compare second
if grep -qxF -f "$out/slower-first.txt" "$out/slower-second.txt" 2>/dev/null; then
	echo "gate: slower both times: $(grep -xF -f "$out/slower-first.txt" "$out/slower-second.txt" | tr '\n' ' ')"
	exit 1
fi
echo "gate: no benchmark was slower both times"
