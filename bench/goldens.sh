#!/usr/bin/env bash
# Runs `krater compare` over the golden vectors: each model, in one to three layer
# groups, with prompts in chunks of 1, 7, 32 and whole, and with 1, 3 and 8
# sequences together. Usage: bench/goldens.sh PATH_TO_KRATER
set -euo pipefail
krater=$(realpath "${1:?usage: bench/goldens.sh PATH_TO_KRATER}")
cd "$(dirname "$0")/.."

passed=0 failed=0
check() {
	local last
	if last=$("$krater" compare "$@" | tail -n 1); then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
	fi
	printf '%-90s %s\n' "compare $*" "$last"
}

for model in deepseek_v2_lite deepseek_v2 qwen2; do
	dir=testdata/goldens/$model
	for groups in 1 2 3; do
		check --model "$dir" --golden "$dir" --layer-groups "$groups"
	done
	for chunk in 1 7 32 1000; do
		check --model "$dir" --golden "$dir" --layer-groups 2 --chunk "$chunk"
	done
	for batch in 3 8; do
		check --model "$dir" --golden "$dir" --batch "$batch" --expert-pools 2 --inline-below 0s
	done
done
check --golden models/krater-tiny
echo "$passed passed, $failed failed"
test "$failed" -eq 0
