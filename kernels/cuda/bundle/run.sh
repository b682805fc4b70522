#!/usr/bin/env bash
# Everything that a card has to show, in the order of what matters if time runs out: what
# it is, correctness, golden vectors, speed of kernels, then the sanitizers. Each step has
# a limit of its own. OUT gets few files: summary.txt says how it went, logs.tgz has what
# every step printed so far, h100-kernels.json the kernels' speed.
#
# Usage: run.sh OUT [STEP...]
# Steps: card tests goldens models kernels memcheck racecheck synccheck, and by name only
# speed (a model of DeepSeek-V2-Lite's shape), long (its long prompts), serving (answers through
# the actors, and what the card waits for them), peer (transformers),
# invariant (what --batch-invariant costs: a model of that shape, and answers through the actors, without and with it),
# beside (all strategies, experts on both sides; with TRACE=1 what the actors did), rates (what plan --measure finds, and predicts), small (some of them on a card of 4 GiB), trips (letters between card and host),
# quality (krater-tiny's held-out text in the precisions a card has, and on the processor)
# It lies in an unpacked krater-gpu.tgz, or with programs.tar.xz anywhere in a checkout.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: run.sh OUT [STEP...]}
shift
steps=${*:-card tests goldens models kernels memcheck racecheck synccheck}
mkdir -p "$out"
out=$(cd "$out" && pwd)
summary=$out/summary.txt
: >"$summary"
logs=$(mktemp -d)

root=$here/programs
if [ ! -x "$root/krater" ]; then
	mkdir -p "$root"
	tar -C "$root" -xJf "$here/programs.tar.xz" || python3 -m tarfile -e "$here/programs.tar.xz" "$root" || exit 1
fi
chmod -R u+x "$root"
data=$here
while [ "$data" != / ] && [ ! -d "$data/testdata/goldens" ]; do data=$(dirname "$data"); done
# The test programs find golden vectors and models where `go test` would.
for d in testdata models; do
	if [ -d "$data/$d" ] && [ ! -e "$root/$d" ]; then ln -s "$data/$d" "$root/$d"; fi
done
export KRATER_CACHE_DIR=${KRATER_CACHE_DIR:-$here/cache}

failed=0
# step NAME SECONDS COMMAND...
step() {
	local name=$1 limit=$2 start=$SECONDS rc
	shift 2
	timeout -k 5 "$limit" "$@" >"$logs/$name.txt" 2>&1
	rc=$?
	printf '%-4s %4d s  %s\n' "$([ $rc = 0 ] && echo ok || { [ $rc = 124 ] && echo late || echo FAIL; })" $((SECONDS - start)) "$name" | tee -a "$summary"
	if [ $rc -ne 0 ]; then
		failed=1
		tail -n 15 "$logs/$name.txt" | cut -c1-300 | sed 's/^/     | /'
	fi
	tar -C "$logs" -czf "$out/logs.tgz" .
}
tests() { (cd "$root" && find kernels -name '*.test' | sort); }
# each PREFIX SECONDS TOOL... -- FLAGS...: every test program, in its own folder
each() {
	local prefix=$1 limit=$2 tool=() t
	shift 2
	while [ "$1" != -- ]; do tool+=("$1"); shift; done
	shift
	for t in $(tests); do
		cd "$root/$(dirname "$t")" || exit 1
		step "$prefix-$(basename "$t" .test)" "$limit" "${tool[@]}" "$root/$t" "$@"
	done
	cd "$here" || exit 1
}
golden() { # NAME FOLDER FLAGS...
	local name=$1 dir=$data/$2
	shift 2
	step "golden-$name" 60 "$root/krater" compare --device cuda --model "$dir" --golden "$dir" "$@"
	if grep -q 'running on the processor' "$logs/golden-$name.txt"; then
		echo "FAIL         golden-$name did not use the card" | tee -a "$summary"
		failed=1
	fi
}
# The folder of cuBLASLt, which times are compared with where it is installed.
cublas() { timeout 30 find /usr /opt -name 'libcublasLt.so.1[23]' -printf '%h\n' 2>/dev/null | sort | head -n 1; }
# speed NAME FLAGS...: the model of the shape, its parts as a user would keep them for speed
speed() {
	local name=$1
	shift
	step "$name" 280 sh -c "'$root/krater' bench model --device cuda --shape deepseek-v2-lite --attention-quant int8 \
		--kv-dtype fp8 --decode 256 --profile --json $* >'$out/$name.json'"
}
# quality NAME FLAGS...: perplexity, and how far from the model in bfloat16
quality() {
	local name=quality-$1
	shift
	step "$name" 60 "$root/krater" ppl --model "$data/models/krater-tiny" --text "$data/models/krater-tiny/heldout.txt" "$@"
	tail -n 1 "$logs/$name.txt" | tr '\r' '\n' | tail -n 1 | sed 's/^/            /' | tee -a "$summary"
}
sanitizer() { command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || echo compute-sanitizer; }

for s in $steps; do
	case $s in
	card)
		step card 30 nvidia-smi
		step version 30 "$root/krater" version
		;;
	tests) each test 120 -- -test.v -test.timeout 110s ;;
	goldens)
		for model in deepseek_v2_lite deepseek_v2; do
			golden "$model" "testdata/goldens/$model"
			golden "$model-batch3" "testdata/goldens/$model" --batch 3
			for chunk in 1 7 64; do golden "$model-chunk$chunk" "testdata/goldens/$model" --chunk "$chunk"; done
			golden "$model-bf16" "testdata/goldens/$model" --rows bf16
			golden "$model-bf16-chunk7" "testdata/goldens/$model" --rows bf16 --chunk 7
		done
		golden krater-tiny models/krater-tiny
		;;
	models)
		cd "$root/cmd/krater" || exit 1
		KRATER_TRUE_SIZES=1 step models 200 "$root/cmd/krater/krater.test" -test.v -test.timeout 190s -test.run 'FastKernels|Chunks|Thresholds|RunsAreEqual|CacheTypes|Batches|Repeated|ChainOnCard|Int4Golden|ServeOnCard$|StrategiesOnCard|LettersOnCard|PiecesOnCard|CardMeter'
		cd "$here" || exit 1
		;;
	speed) speed speed --prefill 512,2048,8192 --batch 1,8,32 --context 512,2048,8192 ;;
	beside) # experts on both sides: every strategy, with BUDGETS of experts
		step beside 420 sh -c "'$root/krater' bench strategies --device cuda --shape deepseek-v2-lite --attention-quant int8 --kv-dtype fp8 --routing-skew zipf \
			--prefill ${LENGTHS:-2048,8192} --prompts ${PROMPTS:-4} --decode 32 --streams ${STREAMS:-8} --budgets ${BUDGETS:-2GiB,4GiB} ${ONLY:-} ${TRACE:+--trace '$out/trace'} --json >'$out/strategies.json'" ;;
	small) # the same on a card of 4 GiB
		step small 150 sh -c "'$root/krater' bench strategies --device cuda --vram 4GiB --shape deepseek-v2-lite --attention-quant int8 --kv-dtype fp8 --routing-skew zipf \
			--prefill 512 --prefill-chunk 512 --decode 64 --only cpu_only --only hot_cached_static --only layer_grouped/hot_cached_static --json >'$out/small.json'" ;;
	rates)
		step rates 120 sh -c "'$root/krater' plan --shape deepseek-v2-lite --attention-quant int8 --kv-dtype fp8 --expert-vram ${BUDGET:-2GiB} --context 32 --measure --json >'$out/rates.json'" ;;
	trips) step trips 60 "$root/krater" bench kernels --device cuda --only trip ;;
	serving) step serving 150 sh -c "'$root/krater' bench --device cuda --shape deepseek-v2-lite --attention-quant int8 --kv-dtype fp8 \
		--batch 1,8,32 --context 2048 --decode 128 --rounds 5 --prefill 512,2048,8192 --json >'$out/serving.json'" ;;
	invariant)
		for how in without with; do
			flag=
			[ $how = with ] && flag=--batch-invariant
			step "invariant-model-$how" 200 sh -c "'$root/krater' bench model --device cuda --shape deepseek-v2-lite --attention-quant int8 \
				--kv-dtype fp8 --decode 256 --prefill 512,2048 --batch 1,8,32 --context 512,2048 $flag --json >'$out/invariant-model-$how.json'"
			step "invariant-serving-$how" 150 sh -c "'$root/krater' bench --device cuda --shape deepseek-v2-lite --attention-quant int8 --kv-dtype fp8 \
				--batch 1,8,32 --context 2048 --decode 128 --rounds 5 --prefill 512,2048 $flag --json >'$out/invariant-serving-$how.json'"
		done
		;;
	long) speed long --prefill 10000,32768,131072 --batch 1 --context 512,2048,8192,32768 ;;
	peer) step peer 280 sh -c "python3 '$root/bench/peers/transformers_v2lite.py' >'$out/peer.json'" ;;
	quality)
		for kv in bf16 fp8 int8; do quality "kv-$kv" --device cuda --against bf16 --kv-dtype "$kv"; done
		for bits in 4 8; do
			quality "int$bits" --device cuda --against bf16 --kv-dtype bf16 --gpu-expert-bits "$bits" --attention-quant int8 --shared-expert-quant int8
			quality "int$bits-cpu" --against bf16 --kv-dtype bf16 --cpu-expert-bits "$bits" --attention-quant int8 --shared-expert-quant int8
		done
		;;
	kernels)
		step kernels 180 env LD_LIBRARY_PATH="$(cublas)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
			"$root/krater" bench kernels --device cuda --record "$out/h100-kernels.json"
		;;
	memcheck) each memcheck 120 "$(sanitizer)" --tool memcheck --report-api-errors no --error-exitcode 9 -- -test.short -test.timeout 110s ;;
	racecheck | synccheck) step "$s" 150 "$(sanitizer)" --tool "$s" --error-exitcode 9 "$root/krater" bench kernels --device cuda --small ;;
	*)
		echo "no step $s" >&2
		exit 2
		;;
	esac
done
exit $failed
