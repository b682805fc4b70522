#!/usr/bin/env bash
# Assembles the kernels' text form (compute_80) for GPUs of capability 9.0, and writes an overlay for go build. With it
# --portable-kernels starts at once on a Hopper GPU, where a driver would compile the text form for a minute first. Other
# GPUs cannot run that program's portable kernels.
#
# Usage: assembled.sh PTXAS FOLDER, in the repository's root; then go build -overlay FOLDER/overlay.json
set -euo pipefail
ptxas=${1:?usage: assembled.sh PTXAS FOLDER} out=$(mkdir -p "${2:?usage: assembled.sh PTXAS FOLDER}" && cd "$2" && pwd)
bin=$PWD/kernels/cuda/bin

assemble() { # a text form without kernels stays: all of its file's are for Hopper
	local name=${1%.ptx.gz}
	gzip -dc "$bin/$1" >"$out/$name.ptx"
	if grep -q '\.entry ' "$out/$name.ptx"; then
		"$ptxas" -O3 -arch=sm_90 "$out/$name.ptx" -o "$out/$name.cubin"
		gzip -9nc "$out/$name.cubin" >"$out/$1"
	fi
	rm -f "$out/$name.ptx" "$out/$name.cubin"
}
export -f assemble
export ptxas out bin
find "$bin" -name '*.ptx.gz' -printf '%f\n' | xargs -P "$(nproc)" -I{} bash -euo pipefail -c 'assemble {}'

comma='' list=''
for f in "$out"/*.ptx.gz; do
	list+="$comma\"$bin/${f##*/}\":\"$f\"" comma=,
done
printf '{"Replace":{%s}}\n' "$list" >"$out/overlay.json"
