#!/usr/bin/env bash
# Tests and times a GPU, the most important steps first in case time runs out: what the GPU
# is, correctness, golden vectors, speed of kernels, then the sanitizers. Each step has a time
# limit of its own. OUT gets few files: summary.txt has the result of each step, logs.tgz the
# output of every step so far, h200-kernels.json the kernels' speed.
#
# Usage: run.sh OUT [STEP...]
# Steps: card tests goldens models kernels memcheck racecheck synccheck, and by name only
# speed (a model of DeepSeek-V2-Lite's shape), long (its long prompts), serving (answers through
# the actors, and how long the GPU waits for them), peer (transformers),
# invariant (what --batch-invariant costs: a model of that shape, and answers through the actors, without and with it),
# start (a start measures the GPU once), trace (what a server's actors and GPU do beside clients, and what noting it costs), load (clients of a server: closed loops, then an open one of 0.7 of what 64 of them got),
# beside (all strategies, experts on both sides; with TRACE=1 what the actors did: STREAMS=1 ONLY="--only layer_grouped" of a step alone), rates (what plan --measure finds, and predicts), small (some of them on a GPU of 4 GiB), trips (letters between GPU and host),
# quality (krater-tiny's held-out text in the precisions that a GPU has, and on the processor)
# The script is in an unpacked krater-gpu.tgz, or with programs.tar.xz anywhere in a checkout.
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
		echo "FAIL         golden-$name did not use the GPU" | tee -a "$summary"
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
# answering HOST PORT: whether a server there is ready
answering() { (exec 3<>"/dev/tcp/$1/$2" && printf 'GET /ready HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3 && head -n 1 <&3 | grep -q ' 200 ') 2>>"$logs/ready.txt"; }
# loads: a server of random weights, and what its clients see. Their tokens have texts of
# their own, so no client asks for more than tokens. The first load is for the graphs.
loads() {
	local url=http://127.0.0.1:18080 server streams requests rate
	local ask=("$root/krater" bench serve --url "$url" --prompt "${PROMPT:-1000}" --answer "${ANSWER:-200}")
	"$root/krater" serve --listen "${url#http://}" --batch-dir off --log-level warn --shape deepseek-v2-lite --max-seqs 64 \
		${SERVER:---device cuda --attention-quant int8 --kv-dtype fp8} >"$out/load-server.txt" 2>&1 &
	server=$!
	until answering 127.0.0.1 18080; do
		kill -0 "$server" || { tail -n 5 "$out/load-server.txt"; return 1; }
		sleep 0.5
	done
	"${ask[@]}" --concurrency 64 --requests 64 || return 1
	for streams in 1 8 64; do
		requests=$((streams == 64 ? 256 : 12 * streams))
		"${ask[@]}" --concurrency "$streams" --requests "${REQUESTS:-$requests}" --json-file "$out/load-$streams.json" || return 1
	done
	rate=$(awk -F '[:,]' '/"requests_per_s"/ { print 0.7 * $2 }' "$out/load-64.json")
	"${ask[@]}" --rate "$rate" --requests "${REQUESTS:-256}" --json-file "$out/load-rate.json" || return 1
	kill "$server" && wait "$server"
}
# traces: a server whose card holds a part of the experts, beside 1 and 8 clients: what its
# actors do, and the clients' tokens a second while nobody looks, and while it is recorded
traces() {
	local url=http://127.0.0.1:18081 server streams load how
	"$root/krater" serve --listen "${url#http://}" --batch-dir off --log-level warn --shape deepseek-v2-lite --max-seqs 8 \
		${SERVER:---device cuda --attention-quant int8 --kv-dtype fp8 --expert-vram 4GiB --routing-skew zipf} >"$out/trace-server.txt" 2>&1 &
	server=$!
	until answering 127.0.0.1 18081; do
		kill -0 "$server" || { tail -n 5 "$out/trace-server.txt"; return 1; }
		sleep 0.5
	done
	for streams in ${STREAMS:-1 8}; do
		for how in ${HOW:-warm without with without with}; do
			"$root/krater" bench serve --url "$url" --prompt "${PROMPT:-2000}" --answer 400 --concurrency "$streams" --duration "${LOAD:-8s}" \
				--json-file "$logs/trace-load.json" >"$logs/trace-load.txt" 2>&1 &
			load=$!
			sleep 3
			if [ $how = with ]; then
				"$root/krater" trace record --url "$url" --seconds 3 --out "$logs/trace-$streams.json" || return 1
			fi
			wait "$load" || { cat "$logs/trace-load.txt"; return 1; }
			echo "$streams clients, $how a recording: $(grep -E 'tokens' "$logs/trace-load.txt" | head -n 3 | tr '\n' ';')"
		done
		"$root/krater" trace show "$logs/trace-$streams.json" --steps 3
		gzip -c "$logs/trace-$streams.json" >"$out/trace-$streams.json.gz"
	done
	kill "$server" && wait "$server"
}
# starts starts the program twice on a GPU that holds a part of the experts; the second start uses the
# measurements that the first kept
starts() {
	local cache n
	cache=$(mktemp -d)
	for n in 1 2; do
		SECONDS=0
		"$root/krater" run ${START:---device cuda --attention-quant int8 --kv-dtype fp8 --expert-vram 2GiB} --shape deepseek-v2-lite --cache-dir "$cache" \
			--max-tokens 16 --ignore-eos --ids "a b c" >"$cache/ids.$n" 2>"$cache/told.$n" || { tail -n 5 "$cache/told.$n"; return 1; }
		echo "start $n, $SECONDS s"
		grep -E 'measur|strategies|tokens' "$cache/told.$n"
	done
	ls "$cache"/rates-*.json && grep -q measuring "$cache/told.1" && ! grep -q measuring "$cache/told.2"
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
		KRATER_TRUE_SIZES=1 step models 200 "$root/cmd/krater/krater.test" -test.v -test.timeout 190s -test.run 'FastKernels|Chunks|Thresholds|RunsAreEqual|CacheTypes|Batches|Repeated|ChainOnCard|Int4Golden|ServeOnCard$|StrategiesOnCard|LettersOnCard|PiecesOnCard|CardMeter|InvariantOnCard|FormsOnCard|PreemptedOnCard'
		cd "$here" || exit 1
		;;
	speed) speed speed --prefill 512,2048,8192 --batch 1,8,32 --context 512,2048,8192 ;;
	beside) # experts on both sides: every strategy, with BUDGETS of experts
		step beside 420 sh -c "'$root/krater' bench strategies --device cuda --shape deepseek-v2-lite --attention-quant int8 --kv-dtype fp8 --routing-skew zipf \
			--prefill ${LENGTHS:-2048,8192} --prompts ${PROMPTS:-4} --decode 32 --streams ${STREAMS:-8} --budgets ${BUDGETS:-2GiB,4GiB} ${ONLY:-} ${TRACE:+--trace '$out/trace'} --json >'$out/strategies.json'" ;;
	small) # the same on a GPU of 4 GiB
		step small 150 sh -c "'$root/krater' bench strategies --device cuda --vram 4GiB --shape deepseek-v2-lite --attention-quant int8 --kv-dtype fp8 --routing-skew zipf \
			--prefill 512 --prefill-chunk 512 --decode 64 --only cpu_only --only hot_cached_static --only layer_grouped/hot_cached_static --json >'$out/small.json'" ;;
	rates)
		step rates 120 sh -c "'$root/krater' plan --shape deepseek-v2-lite --attention-quant int8 --kv-dtype fp8 --expert-vram ${BUDGET:-2GiB} --context 32 --measure --json >'$out/rates.json'" ;;
	start)
		export -f starts
		export root
		step start 150 bash -c starts
		sed 's/^/            /' "$logs/start.txt" | cut -c1-300 | tee -a "$summary"
		;;
	trace)
		export -f traces answering
		export root out logs
		step trace 220 bash -c traces
		cp "$logs/trace.txt" "$out/"
		;;
	load)
		export -f loads answering
		export root out logs
		step load 280 bash -c loads
		cp "$logs/load.txt" "$out/"
		;;
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
			"$root/krater" bench kernels --device cuda --record "$out/h200-kernels.json"
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
