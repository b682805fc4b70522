// Command gen writes the assembly of kernels/cpu. Run it through gen.sh; the
// output is committed, and CI regenerates and compares it.
//
// One file of this package makes one package of kernels/cpu, for AVX2 and
// AVX-512 from the same description where that is possible.
package main

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/buildtags"
	"github.com/mmcloughlin/avo/pass"
	"github.com/mmcloughlin/avo/printer"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: gen DIR (the folder kernels/cpu)")
	}
	both := func(emit func(*isa)) []level { return []level{{"AVX2", emit}, {"AVX512", emit}} }
	integers := func(emit func(*isa)) []level { return append(both(emit), level{"AVXVNNI", emit}) }
	packages := []struct {
		name   string
		levels []level
	}{
		{"dot", both(emitDot)},
		{"axpy", both(emitAxpy)},
		{"convert", both(emitConvert)},
		{"norm", both(emitNorm)},
		{"exp", both(emitExp)},
		{"rope", both(emitRope)},
		{"qrows", both(emitQRows)},
		{"qdot", integers(emitQdot)},
		{"blockdot", append(integers(emitBlockdot), level{"AMX", emitBlockUnit})},
		{"delta", both(emitDelta)},
		{"index", both(emitIndex)},
		{".", []level{{"AVX2", emitRead}}},
		{"qtile", []level{{"AMX", emitTileUnit}}},
		{"btile", []level{{"AMX", emitTileFloats}}},
	}
	for _, p := range packages {
		var stubs []string
		for _, l := range p.levels {
			g := newISA(l.suffix)
			l.emit(g)
			if err := write(os.Args[1], p.name, g, &stubs); err != nil {
				log.Fatalf("%s, %s: %v", p.name, g.suffix, err)
			}
		}
		if err := writeStubs(os.Args[1], p.name, stubs); err != nil {
			log.Fatal(err)
		}
	}
}

// level writes a package for one kind of instructions.
type level struct {
	suffix string
	emit   func(*isa)
}

// function begins a function. doc is one line; the level is part of the name.
func (g *isa) function(name, signature, doc string) {
	g.name = name + g.suffix
	g.text(g.name, "func("+signature+")"+g.result)
	g.Doc(g.name + " " + doc)
	g.Pragma("noescape")
}

// The kernels that take a tile know it as bytes here; the package has a type.
var tile = strings.NewReplacer("t *byte", "t *Tile", "b *byte", "b *Block", "sum *byte", "sum *Weigh", "rows *byte", "rows *Rows")

func write(dir, name string, g *isa, stubs *[]string) error {
	f, err := g.Result()
	if err != nil {
		return err
	}
	if err := pass.Compile.Execute(f); err != nil {
		return err
	}
	pkg := filepath.Base(name)
	if name == "." {
		pkg = "cpu"
	}
	config := printer.Config{Argv: []string{"kernels/cpu/_gen/gen.sh"}, Name: "avo", Pkg: pkg}
	f.Constraints = buildtags.Constraints{buildtags.Not("purego").ToConstraint()}
	text, err := printer.NewGoAsm(config).Print(f)
	if err != nil {
		return err
	}
	if g.vnni() {
		text = shortVNNI(text)
	}
	file := filepath.Join(dir, name, fmt.Sprintf("%s_%s_amd64.s", pkg, strings.ToLower(g.suffix)))
	if err := os.WriteFile(file, []byte(tile.Replace(string(text))), 0o644); err != nil {
		return err
	}
	stub, err := printer.NewStubs(config).Print(f)
	if err != nil {
		return err
	}
	*stubs = append(*stubs, tile.Replace(string(stub)))
	return nil
}

// writeStubs joins the declarations of all levels in one file.
func writeStubs(dir, name string, stubs []string) error {
	var b bytes.Buffer
	b.WriteString(stubs[0])
	for _, s := range stubs[1:] {
		_, declarations, ok := strings.Cut(s, "package "+name+"\n")
		if !ok {
			return fmt.Errorf("%s: stub without a package clause", name)
		}
		b.WriteString(declarations)
	}
	return os.WriteFile(filepath.Join(dir, name, "stubs_amd64.go"), b.Bytes(), 0o644)
}

func newISA(suffix string) *isa {
	g := &isa{Context: build.NewContext(), suffix: suffix, lanes: 16}
	if suffix == "AVX2" || g.vnni() {
		g.lanes = 8
	}
	return g
}
