package main

import "testing"

// TestImportTableBites holds the checker itself to account.
func TestImportTableBites(t *testing.T) {
	for _, c := range []struct {
		pkg, imp string
		bad      bool
	}{
		{"krater/scheduler", "time", false},
		{"krater/scheduler", "github.com/rs/zerolog", true},
		{"krater/scheduler", "go.etcd.io/bbolt", true},
		{"krater/scheduler/batchqueue", "go.etcd.io/bbolt", false},
		{"krater/transport/batches", "krater/scheduler/batchqueue", false},
		{"krater/transport/server", "krater/scheduler/batchqueue", true},
		{"krater/stages/attention", "krater/kernels/cpu", true},
		{"krater/stages/attention", "krater/kernels/device", false},
		{"krater/transport/server", "krater/actors", true},
		{"krater/transport/server", "krater/actors/engine", false},
		{"krater/transport/server", "github.com/asynkron/protoactor-go/actor", true},
		{"krater/transport/otlp", "go.opentelemetry.io/otel/trace", false},
		{"krater/transport/server", "go.opentelemetry.io/otel/trace", true},
		{"krater/actors", "github.com/asynkron/protoactor-go/actor", false},
		{"krater/cmd/krater", "krater/bench/stat", false},
		{"krater/bench/cores", "krater/bench/stat", false},
		{"krater/bench/stat", "gonum.org/v1/plot", true},
		{"krater/bench/serve", "krater/transport/client", false},
		{"krater/bench/serve", "krater/transport/server", true},
		{"krater/bench/cores", "krater/transport/client", true},
		{"krater/bench/peers/join", "krater/cmd/krater", true},
		{"krater/cmd/krater/wizard", "krater/cmd/krater/term", false},
		{"krater/transport/api", "krater/cmd/krater/term", true},
		{"krater/stages/drive", "krater/bench/stat", true},
		{"krater/kernels/cuda/driver", "gorgonia.org/cu", false},
		{"krater/kernels/cuda/gemm", "gorgonia.org/cu", true},
		{"krater/actors/local/config", "krater/kernels/cuda", false},
		{"krater/actors/local/plan", "krater/bench/kernels", true},
		{"krater/transport/server", "krater/actors/local", true},
		{"krater/stages/source", "krater/models", false},
		{"krater/stages/load", "krater/models", true},
		{"krater/docs/embed", "krater/actors/local", false},
		{"krater/docs/embed", "krater/cmd/krater/console", true},
		{"krater/newthing", "fmt", true},
	} {
		if got := fault(c.pkg, c.imp) != "" || reserved(c.pkg, c.imp); got != c.bad {
			t.Errorf("fault(%s, %s) = %v, want %v", c.pkg, c.imp, got, c.bad)
		}
	}
}
