#!/usr/bin/env bash
# Runs every client of docs/clients.md against the server of KRATER_URL, and
# prints a line CELL {...} for each of its features.
#   bench/clients/matrix.sh [CLIENT...]    names of programs in matrix/ and matrix-node/
# Packages are installed into build/clients: a virtual environment for each
# file of matrix/requirements. KRATER_REAL_URL is a server with a model, for
# lm-eval and guidellm. These get matrix/torch in place of PyTorch.
set -uo pipefail
cd "$(dirname "$0")"
build=$PWD/../../build/clients
mkdir -p "$build"
rm -rf "$build/torch" && cp -r matrix/torch "$build/torch" # pip builds it where it lies
export KRATER_TORCH=$build/torch
programs() {
	echo "official openai_python anthropic_python ollama_python"
	echo "frameworks langchain langchain_messages pydanticai instructor_python openai_agents smolagents_python"
	echo "llamaindex llamaindex"
	echo "litellm litellm_proxy"
	echo "evals lm_eval_harness guidellm_load"
	echo "aider aider_ask"
}
wanted() { [ $# -eq 1 ] || [[ " ${*:2} " == *" $1 "* ]]; }
bad=0
# attempt NAME COMMAND: a program that ends without all of its cells counts as one that failed.
attempt() {
	timeout 600 "${@:2}" || { echo "CELL {\"client\":\"$1\",\"version\":\"\",\"feature\":\"plain\",\"result\":\"failed\",\"note\":\"the program broke off\"}" && bad=1; }
}
while read -r group list; do
	python=$build/venv-$group/bin/python
	for name in $list; do
		wanted "$name" "$@" || continue
		if ! cmp -s "matrix/requirements/$group.txt" "$build/venv-$group/requirements"; then
			python3 -m venv "$build/venv-$group" && "$python" -m pip install -q -r "matrix/requirements/$group.txt" 2>&1 | tail -n 3
			cp "matrix/requirements/$group.txt" "$build/venv-$group/requirements"
		fi
		attempt "$name" env PYTHONDONTWRITEBYTECODE=1 "$python" "matrix/$name.py"
	done
done < <(programs)
for name in openai anthropic ai-sdk; do
	wanted "$name" "$@" || continue
	./npm.sh matrix-node >"$build/matrix-node.npm.log" 2>&1
	attempt "$name" node "matrix-node/$name.mjs"
done
wanted go "$@" && (cd openai-go && go test -count=1 -v -run TestCells . | grep -E "^CELL|FAIL")
exit $bad
