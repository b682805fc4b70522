#!/usr/bin/env bash
# Builds what a release consists of into a folder, which is emptied first:
#   deploy/release/release.sh [FOLDER]        (make release: build/release)
#
#   krater-VERSION-linux-amd64.tar.gz         static
#   krater-VERSION-linux-amd64-cuda.tar.gz    for GPUs: needs glibc 2.34 or later, and a driver to use one
#   krater-VERSION-linux-arm64-untested.tar.gz, -darwin-amd64-untested, -darwin-arm64-untested
#                                             compiled on another system and never run, without assembly
#   krater_VERSION_amd64.deb                  the static program as a service, with its manual
#   krater-VERSION.sbom.json                  the modules in the program, as CycloneDX has them
#   SHA256SUMS
#
# A commit gives the same bytes each time with the same tools. It needs dpkg-deb, and objdump of binutils;
# GPU=0 leaves out the build for GPUs, which needs a C compiler and the CUDA headers.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-build/release}
sbom=github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0

rm -rf "$out" && mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
date=$(TZ=UTC git log -1 --date=format-local:%Y-%m-%d --format=%cd)

make -s build
version=$(build/krater version | sed -n 's/^krater \([0-9][^ ]*\).*/\1/p')
[ -n "$version" ]

# pages FOLDER: a manual page for each command
pages() {
	mkdir -p "$1"
	page() { # NAME WORDS...
		local name=$1
		shift
		COLUMNS=100 NO_COLOR=1 build/krater help "$@" |
			awk -v title="${name^^}" -v version="$version" -v date="$date" -f deploy/release/man.awk | gzip -n9 >"$dir/$name.1.gz"
	}
	local dir=$1 command
	page krater
	COLUMNS=1000 NO_COLOR=1 build/krater help | sed -n '/^COMMANDS/,/^OPTIONS/s/^  \([a-z][a-z ]*[a-z]\)  .*/\1/p' >"$work/commands"
	while read -r command; do
		# shellcheck disable=SC2086 # bench model is two words
		page "krater-${command// /-}" $command
	done <"$work/commands"
}
pages "$work/man"

# archive FILE FOLDER: the folder as a tarball of the same bytes each time
archive() {
	tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$(dirname "$2")" -c "$(basename "$2")" | gzip -n9 >"$1"
}

# tarball TARGET PROGRAM [NOTE]
tarball() {
	local dir=$work/krater-$version-$1
	mkdir -p "$dir/man1"
	install -m 0755 "$2" "$dir/krater"
	cp LICENSE NOTICE README.md CHANGELOG.md SECURITY.md "$dir/"
	cp "$work"/man/*.gz "$dir/man1/"
	if [ -n "${3:-}" ]; then fold -sw 90 <<<"$3" >"$dir/UNTESTED"; fi
	archive "$out/krater-$version-$1.tar.gz" "$dir"
}

tarball linux-amd64 build/krater

if [ "${GPU:-1}" != 0 ]; then
	make -s build-cuda
	# The forwarder finds the driver when it is needed, so libc is all that has to be there.
	needs=$(objdump -p build/krater-cuda | awk '$1 == "NEEDED" { print $2 }' | grep -vE '^(libc\.so\.6|ld-linux-x86-64\.so\.2)$' || true)
	glibc=$(objdump -T build/krater-cuda | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
	if [ -n "$needs" ] || [ "$(printf '%s\nGLIBC_2.34\n' "$glibc" | sort -V | tail -1)" != GLIBC_2.34 ]; then
		echo "build/krater-cuda needs $needs $glibc; it may need glibc 2.34 alone" >&2
		exit 1
	fi
	tarball linux-amd64-cuda build/krater-cuda
fi

for target in linux/arm64 darwin/amd64 darwin/arm64; do
	make -s build BIN="$work/krater-${target/\//-}" GOOS="${target%/*}" GOARCH="${target#*/}"
	tarball "${target/\//-}-untested" "$work/krater-${target/\//-}" \
		"This program was compiled on another system and has never been run on this one. It has no assembly, so it is slow, and no support for GPUs."
done

# A service: the program, its unit, an empty configuration and the manual.
deb=$work/deb
install -D -m 0755 build/krater "$deb/usr/bin/krater"
mkdir -p "$deb/usr/share/man/man1" "$deb/usr/lib/systemd/system" "$deb/usr/share/bash-completion/completions"
cp "$work"/man/*.gz "$deb/usr/share/man/man1/"
sed 's#/usr/local/bin/#/usr/bin/#' deploy/systemd/krater.service >"$deb/usr/lib/systemd/system/krater.service"
build/krater completion bash >"$deb/usr/share/bash-completion/completions/krater"
install -D -m 0644 deploy/release/krater.yaml "$deb/etc/krater/krater.yaml"
install -D -m 0644 LICENSE "$deb/usr/share/doc/krater/copyright"
install -m 0644 NOTICE README.md "$deb/usr/share/doc/krater/"
gzip -n9 <CHANGELOG.md >"$deb/usr/share/doc/krater/changelog.gz"
mkdir -p "$deb/DEBIAN"
echo /etc/krater/krater.yaml >"$deb/DEBIAN/conffiles"
cat >"$deb/DEBIAN/control" <<CONTROL
Package: krater
Version: $version
Architecture: amd64
Maintainer: The Krater authors <krater@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$deb" | cut -f1)
Section: net
Priority: optional
Description: server for large mixture-of-experts language models
 Krater serves large mixture-of-experts language models on one machine with
 little VRAM and much RAM, over the OpenAI, Anthropic and Ollama APIs.
CONTROL
find "$deb" -type d -exec chmod 0755 {} +
find "$deb" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group -Zxz --build "$deb" "$out/krater_${version}_amd64.deb" >"$work/dpkg"

CGO_ENABLED=0 GOFLAGS='' go run "$sbom" bin -json -noserial -output "$out/krater-$version.sbom.json" build/krater
(cd "$out" && sha256sum -- * >"$work/sums" && cp "$work/sums" SHA256SUMS)
ls -l "$out"
