#!/usr/bin/env bash
# llama.cpp beside Krater on the same machine, in the same minutes.
#   bench/peers/llama.sh install DIR            fetch and build into DIR (network, Go, git, g++, npm)
#   DIR/peer/llama.sh model KRATER "FLAGS"      write DIR/peer/model: FLAGS of `krater synth`, such as
#                                               --shape deepseek-v2-lite --vocab 32000 --expert-type q4_0
#   DIR/peer/llama.sh measure [1,2]             the peer alone, for these numbers of threads
#   DIR/peer/types SECONDS q4_K iq3_s ...       the peer's matrix products alone, by type
#   DIR/peer/llama.sh compare KRATER "FLAGS"    both in turn: FLAGS of `krater bench model` choose
#                                               the same model (shape, layers, precision)
#   DIR/peer/llama.sh formats KRATER "q4_k iq3_s ..." "FLAGS"
#                                               compare by type of GGUF, each multiplied as it is: writes
#                                               a model of FLAGS in each type and a table of all
# Both programs report processor time too (the peer through DIR/peer/steps), which other load disturbs less.
# The peer leaves out the last layer's network for tokens whose logits nobody wants: take many layers.
# BENCH=0 leaves llama-bench out. CPUS names the processors to measure on, such as 2,4 (models are made on all). THREADS (default "1,2"), ROUNDS (2), SAMPLES (40 decode samples of 8 tokens) and
# PROMPTS (4) change how long compare takes. The folder DIR/peer needs nothing
# outside it but the C++ runtime: it can be carried to a machine without network.
# Nothing of llama.cpp is part of this repository; its licence (MIT) comes along as
# DIR/peer/LICENSE.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
release=${LLAMA_RELEASE:-3.22.1} # of npm's node-llama-cpp, which carries libraries and their source

install() {
	local dir
	mkdir -p "${1:?usage: llama.sh install DIR}"
	dir=$(cd "$1" && pwd)
	mkdir -p "$dir/npm" "$dir/peer"
	(cd "$dir/npm" && npm install --ignore-scripts --no-audit --no-fund --omit=optional \
		"node-llama-cpp@$release" "@node-llama-cpp/linux-x64@$release")
	local bins=$dir/npm/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64
	[ -d "$dir/src" ] || git -c advice.detachedHead=false clone -q "$dir/npm/node_modules/node-llama-cpp/llama/gitRelease.bundle" "$dir/src"
	cp -a "$bins"/lib*.so* "$dir/peer/"
	cp "$dir/src/LICENSE" "$dir/peer/LICENSE"
	local llama ggml
	llama=$(basename "$(ls "$dir"/peer/libllama.*so* | grep -v common | head -n 1)")
	ggml=$(basename "$(ls "$dir"/peer/libggml.*so* | head -n 1)")
	# The libraries are release builds; only the measuring program is compiled.
	g++ -O2 -DNDEBUG -std=c++17 -w -I"$dir/src/include" -I"$dir/src/ggml/include" -I"$dir/src/common" -I"$dir/src/vendor" \
		"$dir"/src/tools/llama-bench/*.cpp -L"$dir/peer" -lllama-common "-l:$llama" "-l:$ggml" -lggml-base \
		'-Wl,-rpath,$ORIGIN' -Wl,--allow-shlib-undefined -o "$dir/peer/llama-bench"
	g++ -O2 -std=c++17 -w -I"$dir/src/include" -I"$dir/src/ggml/include" "$here/agree/agree.cpp" -L"$dir/peer" "-l:$llama" "-l:$ggml" -lggml-base \
		'-Wl,-rpath,$ORIGIN' -Wl,--allow-shlib-undefined -o "$dir/peer/agree"
	g++ -O2 -std=c++17 -w -I"$dir/src/ggml/include" "$here/types/types.cpp" -L"$dir/peer" "-l:$ggml" -lggml-base \
		'-Wl,-rpath,$ORIGIN' -Wl,--allow-shlib-undefined -o "$dir/peer/types"
	g++ -O2 -std=c++17 -w -I"$dir/src/include" -I"$dir/src/ggml/include" "$here/steps/steps.cpp" -L"$dir/peer" "-l:$llama" "-l:$ggml" -lggml-base \
		'-Wl,-rpath,$ORIGIN' -Wl,--allow-shlib-undefined -o "$dir/peer/steps"
	(cd "$here" && CGO_ENABLED=0 go build -o "$dir/peer/peers" .)
	cp "$here/llama.sh" "$dir/peer/llama.sh"
	echo "$release" >"$dir/peer/RELEASE"
	echo "installed in $dir/peer"
}

# on COMMAND... runs on the processors to measure on.
on() { if [ -n "${CPUS:-}" ]; then taskset -c "$CPUS" "$@"; else "$@"; fi; }

model() {
	rm -rf "$here/model"
	# Word splitting of the flags is meant.
	# shellcheck disable=SC2086
	"${1:?usage: llama.sh model KRATER \"FLAGS\"}" synth --as gguf --out "$here/model" ${2:-}
}

# bench FILE FLAGS...: a run of llama-bench into a file.
bench() {
	local file=$1
	shift
	(cd "$here" && on ./llama-bench -m model/model.gguf -ngl 0 -o json "$@" >"$file" 2>"$file.log") || {
		tail -n 5 "$file.log" >&2
		return 1
	}
}

# theirs NAME THREADS: decode and prompts of the peer with a number of threads.
theirs() {
	echo "llama.cpp, $2 threads, before: $(on "$here/peers" regime --threads "$2")" >&2
	if [ "${BENCH:-1}" = 1 ]; then
		bench "$results/$1.decode.json" -t "$2" -p 0 -n 8 -r "${SAMPLES:-40}"
		bench "$results/$1.prefill.json" -t "$2" -p 512 -n 0 -r "${PROMPTS:-4}"
	else
		echo "[]" | tee "$results/$1.decode.json" >"$results/$1.prefill.json"
	fi
	on "$here/steps" "$here/model/model.gguf" "$2" 512 "${PROMPTS:-4}" $((8 * ${SAMPLES:-40})) >"$results/$1.steps.json"
	echo "llama.cpp, $2 threads, after: $(on "$here/peers" regime --threads "$2")" >&2
}

measure() {
	results=$here/results/$(date +%Y%m%dT%H%M%S)
	mkdir -p "$results"
	for t in $(tr , ' ' <<<"${1:-${THREADS:-1,2}}"); do theirs "theirs.$t" "$t"; done
	echo "$results"
}

compare() {
	local krater=${1:?usage: llama.sh compare KRATER "FLAGS"} flags=${2:-} ours= others= part
	results=$here/results/$(date +%Y%m%dT%H%M%S)
	mkdir -p "$results"
	for round in $(seq "${ROUNDS:-2}"); do
		for t in $(tr , ' ' <<<"${THREADS:-1,2}"); do
			# Word splitting of the flags is meant.
			# shellcheck disable=SC2086
			on "$krater" bench model $flags --threads "$t" --decode $((8 * ${SAMPLES:-40})) --prefill 512 --batch 1 --context 512 --json >"$results/ours.$t.$round.json"
			theirs "theirs.$t.$round" "$t"
			ours=$ours,$results/ours.$t.$round.json
			for part in decode prefill steps; do others=$others,$results/theirs.$t.$round.$part.json; done
		done
	done
	"$here/peers" join --json --ours "${ours#,}" --theirs "${others#,}" >"$results/joined.json"
	"$here/peers" join --ours "${ours#,}" --theirs "${others#,}" | tee "$results/joined.txt"
	echo "$results"
}

formats() {
	local krater=${1:?usage: llama.sh formats KRATER TYPES FLAGS} list= other
	for type in ${2:?which types}; do
		other=$type
		[ "$type" != mxfp4 ] || other=q8_0 # as files of MXFP4 have it
		model "$krater" "$3 --expert-type $type --other-type $other"
		# The order that Krater reads is made here, on all processors.
		"$krater" bench model --model "$here/model/model.gguf" --expert-format native --prefill 8 --batch 1 --context 8 --decode 8 >/dev/null
		compare "$krater" "--model $here/model/model.gguf --expert-format native"
		list="$list $type=$results/joined.json"
	done
	rm -rf "$here/model"
	# shellcheck disable=SC2086
	"$here/peers" table $list
}

case ${1:-} in
install | model | measure | compare | formats) "$@" ;;
*)
	sed -n '2,/^set -/p' "$0" | sed '$d; s/^# \{0,1\}//'
	exit 2
	;;
esac
