#!/usr/bin/env bash
# A real Prometheus scrapes a real server with the example's config: the config and
# the rules are good, the alerts fire when they should, the scrape is up, and every
# metric that is always there has arrived.
#   deploy/prometheus/check.sh build/krater
# Needs prometheus and promtool (Debian: apt-get install prometheus) and curl.
set -euo pipefail
krater=$(realpath "${1:?which program}")
cd "$(dirname "$0")"
for tool in prometheus promtool curl; do
	command -v "$tool" >/dev/null || { echo "$tool is missing: apt-get install prometheus curl" >&2; exit 2; }
done
promtool check config prometheus.yaml
promtool check rules krater.rules.yaml
promtool test rules krater.rules.test.yaml

tmp=$(mktemp -d) pids=()
finish() {
	local status=$?
	for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null && wait "$pid" || true; done
	if [ "$status" -ne 0 ]; then tail -n 20 "$tmp"/*.log; fi
	rm -rf "$tmp"
}
trap finish EXIT

"$krater" serve --listen 127.0.0.1:0 --batch-dir "$tmp/batches" >"$tmp/server.out" 2>"$tmp/server.log" &
pids+=($!)
server=
for _ in $(seq 300); do
	server=$(grep -oE '127\.0\.0\.1:[0-9]+' "$tmp/server.out" 2>/dev/null | head -n 1) && break
	sleep 0.1
done
[ -n "$server" ] || { echo "the server does not start"; exit 1; }
curl -sSf "http://$server/v1/completions" -H 'Content-Type: application/json' \
	-d '{"prompt":"A lighthouse is","max_tokens":8}' >"$tmp/answer.json"

# The example's config, with this server's port and a scrape a second.
sed -e "s/127\.0\.0\.1:8080/$server/" -e 's/_interval: 10s/_interval: 1s/' prometheus.yaml >"$tmp/prometheus.yaml"
cp krater.rules.yaml "$tmp"
port=$((20000 + RANDOM % 10000))
prometheus --config.file "$tmp/prometheus.yaml" --storage.tsdb.path "$tmp/data" \
	--web.listen-address "127.0.0.1:$port" >"$tmp/prometheus.log" 2>&1 &
pids+=($!)

# ask QUERY: the answer's samples as JSON.
ask() { curl -sS -G "http://127.0.0.1:$port/api/v1/query" --data-urlencode "query=$1" 2>>"$tmp/curl.log"; }

up=
for _ in $(seq 150); do
	up=$(ask 'up{job="krater"}' | grep -o '"1"\]' || true)
	if [ -n "$up" ]; then break; fi
	sleep 0.2
done
[ -n "$up" ] || { echo "no scrape succeeds"; exit 1; }
bad=0
for query in 'krater:ready == 1' 'krater:draining == 0' krater:num_requests_running krater:kv_cache_usage_perc 'krater:request_success{finished_reason="length"} == 1' \
	'krater:generation_tokens_total == 8' 'krater:time_to_first_token_seconds_count == 1' krater:actor_queue_depth \
	krater:batch_store_bytes process_resident_memory_bytes; do
	if ! ask "$query" | grep -q '"value"'; then
		echo "nothing for $query"
		bad=1
	fi
done
if ask 'ALERTS{alertstate="firing"}' | grep -q '"value"'; then
	echo "an alert fires beside a healthy server"
	bad=1
fi
rules=$(curl -sS "http://127.0.0.1:$port/api/v1/rules" | grep -o '"health":"ok"' | wc -l)
echo "scraped $server: up, $rules rules evaluated"
exit $bad
