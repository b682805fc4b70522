#!/usr/bin/env bash
# Lists known advisories of code that the program reaches, with Go's own checker. Fails for
# none: it says what it found, or why it could not look. Takes six minutes at most.
#   advisories.sh [PACKAGE...]
set -uo pipefail
cd "$(dirname "$0")/.."
database=${GOVULNDB:-https://vuln.go.dev} tools=$PWD/build/tools
[ $# -gt 0 ] || set -- ./cmd/krater

left_out() {
	echo "left out: $1"
	exit 0
}
case $database in
http*) curl -sf --head --max-time 10 "$database/index/db.json" >/dev/null || left_out "the database of advisories, $database, cannot be reached" ;;
esac
GOBIN=$tools timeout 120 go install golang.org/x/vuln/cmd/govulncheck@v1.9.0 || left_out "the checker is not available"
timeout 230 "$tools/govulncheck" -db "$database" "$@"
status=$?
case $status in
0 | 3) ;; # none, some
124) left_out "the checker took too long" ;;
*) left_out "the checker ended with status $status" ;;
esac
