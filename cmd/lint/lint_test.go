// Package lint holds the rules of this code base that a compiler does not
// check, as tests.
package lint

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

// rule says what one package, or every package below a prefix ("x/..."), may
// import. Standard library packages and the package's own subtree are always
// allowed; module and foreign paths are matched by prefix.
type rule struct {
	pkg   string
	allow []string
}

// The import table of ARCHITECTURE.md. The first rule that matches a package
// holds.
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
	{"krater/stages/...", []string{"krater/stages", "krater/scheduler/files", "krater/kernels/tensor", "krater/kernels/device", "golang.org/x/sys"}},
	{"krater/actors/engine", nil},
	{"krater/actors/trace", nil},
	{"krater/actors/...", []string{"krater/actors", "krater/scheduler", "krater/stages", "krater/kernels/device", "krater/kernels/tensor", "github.com/asynkron/protoactor-go", "github.com/rs/zerolog"}},
	// The only door that keeps its requests on the disk.
	{"krater/transport/batches", []string{"krater/transport", "krater/actors/engine", "krater/scheduler/batchqueue", "github.com/rs/zerolog", "github.com/prometheus"}},
	{"krater/transport/otlp", []string{"krater/actors/engine", "krater/actors/trace", "github.com/rs/zerolog", "go.opentelemetry.io/otel"}},
	{"krater/transport/...", []string{"krater/transport", "krater/scheduler/jsonlines", "krater/actors/engine", "krater/actors/trace", "github.com/gorilla/websocket", "github.com/rs/zerolog", "github.com/prometheus"}},
	{"krater/cmd/krater/wizard", []string{"krater/cmd/krater/term", "krater/scheduler/files", "charm.land/bubbletea/v2"}},
	{"krater/cmd/...", []string{"krater", "github.com", "golang.org"}},
	{"krater/bench/plot", []string{"gonum.org/v1/plot"}},
	// A client of servers: it speaks their protocol.
	{"krater/bench/serve", []string{"krater/bench", "krater/transport/api", "krater/transport/client"}},
	{"krater/bench/...", []string{"krater/bench", "krater/kernels", "krater/stages"}},
}

type goPackage struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Module     *struct{ Path string }
}

// list reads what `go list` says of the packages matching args.
func list(t *testing.T, args ...string) []goPackage {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Standard,Imports,Module"}, args...)...)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var pkgs []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// under reports whether path is prefix or below it.
func under(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

// standard reports whether path is of the standard library: its first element
// has no dot and it is not of this module.
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

// fault names what is wrong with pkg importing imp, or "".
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

// program is the folder of the program that a package of cmd is of.
func program(pkg string) string {
	parts := strings.SplitN(pkg, "/", 4)
	return strings.Join(parts[:min(3, len(parts))], "/")
}

// reserved reports whether pkg imports what is not for it: nobody imports cmd, but the parts
// of a program one another, and the packages of bench are for cmd and one another.
func reserved(pkg, imp string) bool {
	return under(imp, "krater/cmd") && !under(imp, program(pkg)) || under(imp, "krater/bench") && !under(pkg, "krater/cmd") && !under(pkg, "krater/bench")
}

func TestImportTable(t *testing.T) {
	pkgs := list(t, "./...")
	if len(pkgs) < 10 {
		t.Fatalf("go list found %d packages only", len(pkgs))
	}
	pkgs = append(pkgs, list(t, "-tags", "cuda", "./kernels/cuda/...", "./cmd/...")...)
	for _, p := range pkgs {
		for _, imp := range p.Imports {
			if why := fault(p.ImportPath, imp); why != "" {
				t.Errorf("%s %s", p.ImportPath, why)
			}
			if reserved(p.ImportPath, imp) {
				t.Errorf("%s imports %s: nobody imports cmd, and bench only cmd and bench", p.ImportPath, imp)
			}
		}
	}
}

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
		{"krater/newthing", "fmt", true},
	} {
		if got := fault(c.pkg, c.imp) != "" || reserved(c.pkg, c.imp); got != c.bad {
			t.Errorf("fault(%s, %s) = %v, want %v", c.pkg, c.imp, got, c.bad)
		}
	}
}
