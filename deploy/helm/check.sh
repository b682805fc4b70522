#!/usr/bin/env bash
# Lints the chart and renders it for a cluster, for one node and with a PodMonitor; the arguments that come out must be
# those that the program takes.
#   deploy/helm/check.sh KRATER     KRATER: the program
set -euo pipefail
krater=$(realpath "${1:?usage: check.sh KRATER}")
cd "$(dirname "$0")"
export GOBIN=${GOBIN:-$PWD/../../build/helm}
helm=$GOBIN/helm
[ -x "$helm" ] || go install helm.sh/helm/v3/cmd/helm@v3.22.0
dir=$(mktemp -d) model=$(realpath ../../models/krater-tiny)
trap 'rm -r "$dir"' EXIT
echo key >"$dir/keys"
"$krater" certs "$dir/certs" >"$dir/made"
"$helm" lint krater
for set in size=2 size=1 podMonitor.enabled=true; do
	echo "== $set"
	"$helm" template rel krater --kube-version 1.33.0 --set "$set" >"$GOBIN/chart.yaml"
	awk '$1 == "args:" { on = 1; line = ""; next } on && $1 == "-" { sub(/^ *- /, ""); gsub(/"/, ""); line = line " " $0; next } on { print line; on = 0 }' "$GOBIN/chart.yaml" |
		sed "s|/models/model|$model|; s|/run/keys/api-keys|$dir/keys|; s|/run/certs|$dir/certs|; s|/var/lib/krater|$dir|g" |
		while read -r command args; do
			case $command in
			serve) want=0.0.0.0:8080 extra=--print-config ;;
			worker) want='which leader?' extra= ;; # Kubernetes says
			esac
			said=$("$krater" "$command" $args $extra 2>&1 || true)
			if ! grep -qF -- "$want" <<<"$said"; then
				echo "krater $command $args: $said" >&2
				exit 1
			fi
			echo "krater $command takes its arguments"
		done
done
