#!/usr/bin/env bash
# Starts a server of the built-in model and soaks it: conversations over every door,
# with clients that disconnect and cancel. Report, picture and one line a request go
# to build/soak. Usage: bench/soak.sh PATH_TO_KRATER TIME [FLAGS of krater bench serve]
set -euo pipefail
krater=$(realpath "${1:?usage: bench/soak.sh PATH_TO_KRATER TIME}")
time=${2:?usage: bench/soak.sh PATH_TO_KRATER TIME}
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
	--concurrency 8 --mix sharegpt --prefix 64 --prefix-share 0.5 --sample 5s \
	--plot "$out/soak.svg" "${@:3}" | tee "$out/soak.txt"
