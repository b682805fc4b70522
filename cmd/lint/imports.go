package main

import (
	"slices"
	"strings"
)

// rule says what one package, or every package below a prefix ("x/..."), may import. Standard
// library packages and the package's own subtree are always allowed; module and foreign paths are
// matched by prefix.
type rule struct {
	pkg   string
	allow []string
}

// The import table of ARCHITECTURE.md. The first rule that matches a package holds.
var table = []rule{
	{"krater/models", nil},
	{"krater/scheduler/jsonlines", nil},
	{"krater/scheduler/files", []string{"golang.org/x/sys"}},
	{"krater/kernels/tensor", nil},
	{"krater/kernels/device", []string{"krater/kernels/tensor"}},
	{"krater/kernels/hostsim", []string{"krater/kernels/tensor", "krater/kernels/device", "krater/kernels/cpu"}},
	// The driver and what queues work on it; all else of the CUDA device is plain data.
	{"krater/kernels/cuda/driver", []string{"krater/kernels/device", "krater/kernels/tensor", "gorgonia.org/cu"}},
	{"krater/kernels/cuda/rt", []string{"krater/kernels", "gorgonia.org/cu"}},
	{"krater/kernels/cuda/launch", []string{"krater/kernels/tensor"}},
	{"krater/kernels/cuda/...", []string{"krater/kernels/cuda", "krater/kernels/tensor", "krater/kernels/device"}},
	{"krater/kernels/...", []string{"krater/kernels", "github.com/klauspost/cpuid/v2", "golang.org/x/sys"}},
	// The durable queue keeps its state in a database.
	{"krater/scheduler/batchqueue", []string{"go.etcd.io/bbolt", "krater/scheduler/jsonlines"}},
	{"krater/scheduler/...", []string{"krater/scheduler"}},
	{"krater/stages/text/...", []string{"krater/stages/text", "github.com/dlclark/regexp2/v2", "golang.org/x/text"}},
	// Test devices: the reference operators behind the device interface.
	{"krater/stages/internal/...", []string{"krater/stages", "krater/kernels"}},
	// A model as its files have it, or as one of random weights; the default model is built in.
	{"krater/stages/source", []string{"krater/stages", "krater/models", "krater/scheduler/files", "krater/scheduler/heat", "krater/kernels/tensor"}},
	{"krater/stages/...", []string{"krater/stages", "krater/scheduler/files", "krater/kernels/tensor", "krater/kernels/device", "golang.org/x/sys"}},
	{"krater/actors/engine", nil},
	{"krater/actors/hop", nil},
	{"krater/actors/trace", nil},
	// An engine in this process: the only package of actors that opens devices and files.
	{"krater/actors/local/...", []string{"krater/actors", "krater/scheduler", "krater/stages", "krater/kernels", "github.com/rs/zerolog"}},
	{"krater/actors/...", []string{"krater/actors", "krater/scheduler", "krater/stages", "krater/kernels/device", "krater/kernels/tensor", "github.com/asynkron/protoactor-go", "github.com/rs/zerolog"}},
	// The only door that keeps its requests on the disk.
	{"krater/transport/batches", []string{"krater/transport", "krater/actors/engine", "krater/scheduler/batchqueue", "github.com/rs/zerolog", "github.com/prometheus"}},
	{"krater/transport/otlp", []string{"krater/actors/engine", "krater/actors/trace", "github.com/rs/zerolog", "go.opentelemetry.io/otel"}},
	// A client of hubs, and the folder that it downloads into.
	{"krater/transport/hub", []string{"krater/stages/source/hubcache", "krater/scheduler/files", "golang.org/x/sys"}},
	// Members of a group: frames of batches between their pipelines.
	{"krater/transport/peers", []string{"krater/transport", "krater/actors/hop", "github.com/rs/zerolog", "google.golang.org/grpc"}},
	{"krater/transport/...", []string{"krater/transport", "krater/scheduler/jsonlines", "krater/actors/engine", "krater/actors/trace", "github.com/gorilla/websocket", "github.com/rs/zerolog", "github.com/prometheus"}},
	{"krater/cmd/krater/wizard", []string{"krater/cmd/krater/term", "charm.land/bubbletea/v2"}},
	{"krater/cmd/...", []string{"krater", "github.com", "golang.org"}},
	{"krater/docs/...", []string{"krater/actors/local", "krater/actors/engine"}},
	{"krater/bench/meter", []string{"krater/bench", "krater/kernels", "krater/scheduler/planner/rates"}},
	{"krater/bench/plot", []string{"gonum.org/v1/plot"}},
	// A client of servers: it speaks their protocol.
	{"krater/bench/serve", []string{"krater/bench", "krater/transport/api", "krater/transport/client"}},
	{"krater/bench/...", []string{"krater/bench", "krater/kernels", "krater/stages"}},
}

// under reports whether path is prefix or below it.
func under(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

// standard reports whether path is of the standard library: its first element has no dot and it is
// not of this module.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".") && first != "krater"
}

func ruleOf(pkg string) *rule {
	for i, r := range table {
		if prefix, all := strings.CutSuffix(r.pkg, "/..."); pkg == r.pkg || all && under(pkg, prefix) {
			return &table[i]
		}
	}
	return nil
}

// fault describes what is wrong with pkg importing imp, or returns "".
func fault(pkg, imp string) string {
	r := ruleOf(pkg)
	if r == nil {
		return "has no rule in the import table"
	}
	if standard(imp) || under(imp, pkg) {
		return ""
	}
	for _, a := range r.allow {
		if under(imp, a) {
			return ""
		}
	}
	return "may not import " + imp
}

// program returns the folder of the program that a package of cmd belongs to.
func program(pkg string) string {
	parts := strings.SplitN(pkg, "/", 4)
	return strings.Join(parts[:min(3, len(parts))], "/")
}

// reserved reports whether pkg imports a package that is not for it: parts of a program in cmd are
// only for one another, and packages of bench are only for cmd and one another.
func reserved(pkg, imp string) bool {
	return under(imp, "krater/cmd") && !under(imp, program(pkg)) || under(imp, "krater/bench") && !under(pkg, "krater/cmd") && !under(pkg, "krater/bench")
}

// importFaults checks the import table.
func importFaults() ([]string, error) {
	pkgs, err := list("./...")
	if err != nil {
		return nil, err
	}
	tagged, err := list("-tags", "cuda", "./kernels/cuda/...", "./cmd/...")
	if err != nil {
		return nil, err
	}
	var faults []string
	for _, p := range append(pkgs, tagged...) {
		for _, imp := range p.Imports {
			if why := fault(p.ImportPath, imp); why != "" {
				faults = append(faults, p.ImportPath+" "+why)
			}
			if reserved(p.ImportPath, imp) {
				faults = append(faults, p.ImportPath+" imports "+imp+": only cmd and bench may import bench, and no package may import cmd")
			}
		}
	}
	slices.Sort(faults)
	return slices.Compact(faults), nil
}
