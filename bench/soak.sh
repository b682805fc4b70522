#!/usr/bin/env bash
# Starts a server of the built-in model and soaks it: conversations over every door,
# with clients that disconnect and cancel. Report and picture go to build/soak. FLAGS
# of krater bench serve replace those that say what is asked.
# Usage: bench/soak.sh PATH_TO_KRATER TIME [FLAGS]
set -euo pipefail
krater=$(realpath "${1:?usage: bench/soak.sh PATH_TO_KRATER TIME [FLAGS]}")
time=${2:?usage: bench/soak.sh PATH_TO_KRATER TIME [FLAGS]}
load=("${@:3}")
test "${#load[@]}" -gt 0 || load=(--concurrency 8 --mix sharegpt --prefix 64 --prefix-share 0.5)
cd "$(dirname "$0")/.."
out=build/soak
mkdir -p "$out"

"$krater" serve --listen 127.0.0.1:0 >"$out/serve.txt" 2>"$out/serve.log" &
server=$!
trap 'kill "$server" && wait "$server" || true' EXIT
for _ in $(seq 100); do
	url=$(grep -o 'http://127[0-9.:]*' "$out/serve.txt" | head -n 1 || true)
	test -n "$url" && break
	sleep 0.1
done
test -n "$url" || { cat "$out/serve.log"; exit 1; }

"$krater" bench serve --url "$url" --pid "$server" --soak "$time" --door completions,chat,websocket \
	--sample 5s --plot "$out/soak.svg" "${load[@]}" | tee "$out/soak.txt"
