#!/usr/bin/env bash
# The official client libraries and a browser against a running server.
#   KRATER_URL=http://127.0.0.1:8080 bench/clients/run.sh [page|perfetto]
# With "page" only the page /trace is tested; its pictures are in build/page. With
# "perfetto" Perfetto reads the server's traces.
# Without KRATER_URL it starts build/krater itself and stops it at the end. A
# server of your own must have been started with --origins http://127.0.0.1:18100
# (KRATER_PAGE_PORT changes the port), where the browser's page comes from.
# Missing packages are installed: npm ci, and chromium through apt-get.
set -uo pipefail
cd "$(dirname "$0")"
export GOTOOLCHAIN=go1.27.3 KRATER_PAGE_PORT="${KRATER_PAGE_PORT:-18100}"
logs=../../build/clients
mkdir -p "$logs"
passed=0 failed=0 server=

finish() {
	if [ -n "$server" ]; then
		kill -TERM "$server" 2>/dev/null
		wait "$server" 2>/dev/null
	fi
}
trap finish EXIT

# count NAME PASSED FAILED STATUS: a suite that broke off counts as a failure.
count() {
	local bad=$3
	if [ "$4" -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
	echo "$1: $2 passed, $bad failed"
	if [ "$bad" -ne 0 ]; then tail -n 40 "$logs/$1.log"; fi
	passed=$((passed + $2)) failed=$((failed + bad))
}

number() { grep -oE "$1" "$2" | grep -oE '[0-9]+' | tail -n 1; }

node_suite() {
	local log=$logs/$1.log status=0 files=("${@:2}")
	(./npm.sh "$1" && cd "$1" && timeout 500 node --test --test-concurrency=1 --test-reporter=tap "${files[@]}") >"$log" 2>&1 || status=$?
	local good bad
	good=$(number '^# pass [0-9]+' "$log") bad=$(number '^# fail [0-9]+' "$log")
	count "$1" "${good:-0}" "${bad:-0}" "$status"
}

go_suite() {
	local log=$logs/openai-go.log status=0
	(cd openai-go && go test -count=1 -v -timeout 5m .) >"$log" 2>&1 || status=$?
	count openai-go "$(grep -c '^--- PASS' "$log")" "$(grep -c '^--- FAIL' "$log")" "$status"
}

# recorded NAME COMMAND: a program against an engine that plays the texts of model families.
recorded() {
	local log=$logs/$1.log status=0
	(cd ../../cmd/krater && CLIENTS_REAL_URL=$KRATER_URL CLIENTS_OF_RECORDED=$2 go test -count=1 -v -vet=off -timeout 60m -run TestClientsOnRecorded .) >"$log" 2>&1 || status=$?
	count "$1" "$(grep -c '^--- PASS' "$log")" "$(grep -c '^--- FAIL' "$log")" "$status"
}

# matrix runs every client feature by feature, and writes docs/clients.md.
matrix() {
	recorded matrix "./matrix.sh"
	sed -n 's/^# CELL/CELL/p' "$logs/browser.log" >>"$logs/matrix.log"
	python3 matrix/table.py --write ../../docs/clients.md <"$logs/matrix.log" >"$logs/table.log" 2>&1 || count matrix-cells 0 1 1
}

recorded_suites() {
	local python="PYTHONDONTWRITEBYTECODE=1 '$PWD/$logs/venv-official/bin/python' -m unittest"
	for name in openai anthropic ollama; do
		recorded "$name-python-recorded" "cd $name-python && $python recorded_test"
	done
	recorded openapi "cd openai-python && $python document_test"
	./npm.sh anthropic-node >"$logs/npm.log" 2>&1
	recorded openai-node-recorded "cd openai-node && node --test recorded.mjs"
	recorded anthropic-node-recorded "cd anthropic-node && node --test recorded.mjs"
}

start_server() {
	local krater=../../build/krater out=$logs/server.out
	if [ ! -x "$krater" ]; then
		echo "neither KRATER_URL nor build/krater is there: run make build" >&2
		exit 2
	fi
	rm -rf "$logs/batches"
	"$krater" serve --listen 127.0.0.1:0 --batch-dir "$logs/batches" --origins "http://127.0.0.1:$KRATER_PAGE_PORT" >"$out" 2>"$logs/server.log" &
	server=$!
	for _ in $(seq 300); do
		KRATER_URL=$(grep -oE 'https?://[0-9.]+:[0-9]+' "$out" | head -n 1)
		if [ -n "$KRATER_URL" ]; then return; fi
		if ! kill -0 "$server" 2>/dev/null; then break; fi
		sleep 0.1
	done
	echo "the server did not start:" >&2
	tail -n 20 "$logs/server.log" >&2
	exit 2
}

if [ -z "${KRATER_URL:-}" ]; then start_server; fi
export KRATER_URL=${KRATER_URL%/}
echo "against $KRATER_URL"
if [ "${1:-}" = "" ]; then
	go_suite
	node_suite openai-node
fi
if ! command -v "${CHROMIUM:-chromium}" >/dev/null; then
	{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } >"$logs/apt.log" 2>&1 ||
		{ echo "chromium cannot be installed:"; tail -n 5 "$logs/apt.log"; }
fi
case "${1:-}" in
page)
	node_suite browser page.test.mjs page-parts.test.mjs page-chat.test.mjs page-cluster.test.mjs
	grep '^# \\#' "$logs/browser.log"
	;;
perfetto)
	KRATER_PERFETTO=$(./perfetto.sh) || exit 2
	export KRATER_PERFETTO
	node_suite browser perfetto.mjs
	grep '^# \\#' "$logs/browser.log"
	;;
*)
	node_suite browser browser.test.mjs
	matrix
	recorded_suites
	;;
esac
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
