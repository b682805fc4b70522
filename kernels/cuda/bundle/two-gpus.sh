#!/bin/bash
# Two GPUs of one machine against one of them: two-gpus.sh OUT [PART...]
# Each part has a time limit and prints its results; one that fails does not stop the others.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: two-gpus.sh OUT [PART...]}
shift
parts=${*:-links lite qwen split loss}
mkdir -p "$out"
out=$(cd "$out" && pwd)
krater=${KRATER:-$here/programs/krater}
[ -x "$krater" ] || krater=$here/krater
export KRATER_CACHE_DIR=${KRATER_CACHE_DIR:-$(mktemp -d)}
common="--batch-dir off --log-level warn --attention-quant int8 --kv-dtype fp8 --max-seqs 32"
exec > >(tee "$out/two-gpus.txt") 2>&1
pids=()
trap 'kill "${pids[@]}" 2>>"$out/errors.txt"' EXIT

# serve NAME PORT FLAGS...: a server of random weights
serve() {
	local name=$1 port=$2
	shift 2
	"$krater" serve --listen "127.0.0.1:$port" $common "$@" >"$out/$name.txt" 2>&1 &
	pids+=($!)
}
# alive: whether no server has ended
alive() {
	local p
	for p in "${pids[@]}"; do kill -0 "$p" 2>>"$out/errors.txt" || return 1; done
}
# ready NAME PORT SECONDS: waits for a server
ready() {
	local from=$SECONDS
	while [ $((SECONDS - from)) -lt "$3" ] && alive; do
		if (exec 3<>"/dev/tcp/127.0.0.1/$2" && printf 'GET /ready HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3 && head -n 1 <&3 | grep -q ' 200 ') 2>>"$out/errors.txt"; then
			echo "$1: ready after $SECONDS s"
			return 0
		fi
		sleep 0.3
	done
	echo "$1: not ready: $(tail -n 3 "$out/$1.txt" | cut -c1-400 | tr '\n' ' ')"
	return 1
}
# stop: ends all servers
stop() {
	kill "${pids[@]}" 2>>"$out/errors.txt"
	wait "${pids[@]}" 2>>"$out/errors.txt"
	pids=()
}
# answer PORT: the text of a greedy answer
answer() {
	local ids body
	ids=$(seq -s, ${IDS:-100 7 1000})
	body="{\"prompt\":[$ids],\"max_tokens\":64,\"temperature\":0,\"ignore_eos\":true}"
	exec 3<>"/dev/tcp/127.0.0.1/$1" && printf 'POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' ${#body} "$body" >&3 &&
		timeout 30 cat <&3 | grep -o '"text":"[^}]*' | head -n 1
}
# speed NAME PORT STREAMS: tokens per second of that many clients
speed() {
	timeout 40 "$krater" bench serve --url "http://127.0.0.1:$2" --prompt ${PROMPT:-256} --answer ${ANSWER:-160} --greedy --concurrency "$3" --requests $(($3 == 1 ? 4 : 2 * $3)) --seed 1 \
		--json-file "$out/$1-$3.json" >"$out/$1-$3.txt" 2>&1
	sed -n 's/.*"answer_tokens_per_s": *\([0-9.]*\).*/\1/p' "$out/$1-$3.json" 2>>"$out/errors.txt" | head -n 1
}
# ratio NAME A B WANTED
ratio() { awk -v n="$1" -v a="${2:-0}" -v b="${3:-0}" -v w="$4" 'BEGIN { printf "%s: %.1f tokens/s on two GPUs, %.1f on one: %.2f (wanted: %s)\n", n, b, a, (a > 0 ? b / a : 0), w }'; }
# links: the counters of a server's links
counters() { (exec 3<>"/dev/tcp/127.0.0.1/$1" && printf 'GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3 && grep '^krater:link_' <&3) 2>>"$out/errors.txt" | tr '\n' ' '; }
# compare NAME SECONDS FLAGS...: one GPU against two
compare() {
	local name=$1 limit=$2 a b one
	shift 2
	serve "$name-one" 18081 --device cuda "$@"
	serve "$name-two" 18082 --device cuda:0,cuda:1 "$@"
	ready "$name-one" 18081 "$limit" && ready "$name-two" 18082 "$limit" || { stop; return 1; }
	a=$(answer 18081) b=$(answer 18082)
	if [ -n "$a" ] && [ "$a" = "$b" ]; then echo "$name: the same tokens"; else echo "$name: OTHER TOKENS: $(echo "$a" | cut -c1-200) | $(echo "$b" | cut -c1-200)"; fi
	for streams in 1 32; do
		one=$(speed "$name-one" 18081 $streams)
		ratio "$name, $streams streams" "$one" "$(speed "$name-two" 18082 $streams)" "$([ $streams = 1 ] && echo 0.9 || echo 1.7)"
	done
	echo "$name: $(counters 18082)"
	stop
}

for p in $parts; do
	began=$SECONDS
	case $p in
	links) timeout 40 "$krater" bench links --device cuda:0,cuda:1 2>&1 | tee "$out/links.txt" | cut -c1-300 ;;
	lite) compare lite 50 --shape deepseek-v2-lite --vram "${LITE_VRAM:-30GiB}" ;;
	qwen) compare qwen 70 --shape qwen3-30b-a3b --vram "${QWEN_VRAM:-40GiB}" ;;
	split) # experts that fit on two GPUs and not on one, which leaves the rest to the host
		compare split 60 --shape deepseek-v2-lite --vram "${SPLIT_VRAM:-7GiB}" ;;
	loss) # the context of one GPU ends in the middle of an answer
		timeout 60 "$here/programs/actors/local/local.test" -test.v -test.run '^TestRanksOnGPUs$/^(cuda|cuda:0,cuda:1.*)$' 2>&1 | tee "$out/loss.txt" ;;
	own) compare own 100 $OWN ;; # a model of the caller's: OWN has the flags
	*) echo "no part $p" >&2 ;;
	esac
	echo "$p: $((SECONDS - began)) s"
done
