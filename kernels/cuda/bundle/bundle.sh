#!/usr/bin/env bash
# Makes the programs and data with which a machine with a GPU tests and times everything:
#
#   build/gpu/parts/            the programs (packed together: they share most of their
#                               bytes) and run.sh; enough where the repository is at hand
#   build/gpu/krater-gpu.tgz    the same with the built-in model and golden vectors
#
# Everything in it is linked to libc only (2.34 or newer). Usage, with the CUDA build's
# environment set (make gpu-bundle does): bundle.sh COMMIT
set -euo pipefail
cd "$(dirname "$0")/../../.."
commit=${1:?usage: bundle.sh COMMIT}
out=build/gpu stage=build/gpu/stage
limit=$((60 * 1000 * 1000)) glibc=2.36

rm -rf "$stage" "$out/parts"
mkdir -p "$stage" "$out/parts"
go build -tags cuda,nomodel -trimpath -ldflags "-s -w -X krater/cmd/krater/version.commit=$commit" -o "$stage/krater" ./cmd/krater

# Test programs of the packages that use a GPU, each in its own folder as `go test` has it.
packages=$(go list -tags cuda -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Imports}} {{.TestImports}} {{.XTestImports}}{{end}}' ./kernels/cuda/... |
	awk '/krater\/kernels\/cuda\/(driver|rt|cudatest)/ { print $1 }')
for p in $packages; do
	dir=${p#krater/}
	mkdir -p "$stage/$dir"
	go test -c -tags cuda,nomodel -trimpath -ldflags '-s -w' -o "$stage/$dir/$(basename "$dir").test" "$p"
	if [ -d "$dir/testdata" ]; then cp -r "$dir/testdata" "$stage/$dir/"; fi
done
# Whole models on a GPU are tests of the program.
mkdir -p "$stage/cmd/krater" "$stage/stages/synth" "$stage/bench/peers"
go test -c -tags cuda,nomodel -trimpath -ldflags '-s -w' -o "$stage/cmd/krater/krater.test" ./cmd/krater
mkdir -p "$stage/actors/local"
go test -c -tags cuda,nomodel -trimpath -ldflags '-s -w' -o "$stage/actors/local/local.test" ./actors/local
cp -r stages/synth/shapes "$stage/stages/synth/"
cp bench/peers/transformers_v2lite.py "$stage/bench/peers/"

# What the loader of an older machine would refuse is refused here.
find "$stage" -type f -perm -u+x | while read -r f; do
	if readelf -d "$f" | grep NEEDED | grep -v 'libc\.so\.6'; then
		echo "$f needs more than libc" >&2
		exit 1
	fi
	newest=$( (readelf --dyn-syms -W "$f" | grep -o 'GLIBC_[0-9.]*' || true) | sed 's/GLIBC_//' | sort -uV | tail -n 1)
	if [ -n "$newest" ] && [ "$(printf '%s\n%s\n' "$newest" "$glibc" | sort -V | tail -n 1)" != "$glibc" ]; then
		echo "$f needs glibc $newest, want at most $glibc" >&2
		exit 1
	fi
done

tar -C "$stage" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - . | xz -9 --lzma2=preset=9,dict=384MiB >"$out/parts/programs.tar.xz"
cp kernels/cuda/bundle/run.sh kernels/cuda/bundle/two-gpus.sh "$out/parts/"
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --transform 's,^build/gpu/parts,krater-gpu,;s,^,krater-gpu/,;s,^krater-gpu/krater-gpu,krater-gpu,' \
	-cf - build/gpu/parts models/krater-tiny testdata/goldens/deepseek_v2 testdata/goldens/deepseek_v2_lite | gzip -9n >"$out/krater-gpu.tgz"
rm -rf "$stage"

size=$(stat -c %s "$out/krater-gpu.tgz")
printf '%s: %d bytes, the parts alone %d\n' "$out/krater-gpu.tgz" "$size" "$(du -sb "$out/parts" | cut -f1)"
test "$size" -le "$limit"
