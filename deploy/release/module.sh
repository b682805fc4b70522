#!/usr/bin/env bash
# Changes the path of the module, for a fork or a forge that wants its host in it:
#   deploy/release/module.sh example.org/krater        (make module MODULE=example.org/krater)
# It rewrites go.mod, the imports, the flags that set the version, and the tables of cmd/lint.
set -euo pipefail
cd "$(dirname "$0")/../.."
new=${1:?usage: module.sh PATH, such as example.org/krater}
old=$(go list -m)
if ! [[ $new =~ ^[A-Za-z0-9.-]+(/[A-Za-z0-9._~-]+)*$ ]]; then
	echo "$new: want a path such as example.org/krater" >&2
	exit 1
fi
if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
	echo "there are changes that are not committed: git would mix them with those of this command" >&2
	exit 1
fi
o=${old//./\\.}
folders='actors|bench|cmd|docs|kernels|models|scheduler|stages|testdata|transport'
# Imports and names of packages in strings; a file that is named "krater/batches" by its path is not one.
git ls-files -z '*.go' | xargs -0 sed -Ei "s#([\"\`])$o/($folders)([/\"\`])#\1$new/\2\3#g"
sed -Ei "s#\"$o\"#\"$new\"#g" cmd/lint/*.go
# Flags of the linker and paths of packages in scripts.
git grep -zlE "[ =]$o/($folders)/" -- Makefile '*.mk' '*.sh' '*Containerfile' .ci | xargs -0r sed -Ei "s#([ =])$o/($folders)/#\1$new/\2/#g"
go mod edit -module "$new"
gofmt -w cmd actors bench kernels scheduler stages transport docs models
go build ./...
echo "the module is $new; run make test, and commit"
