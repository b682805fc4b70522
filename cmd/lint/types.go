package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// What typeCounts counts, and where.
const (
	kindPackage = "krater/stages/model"
	kindType    = "AttentionKind" // the kind of a layer's attention
	mixerType   = "Mixer"         // the interface that each kind of attention implements

	devicePackage = "krater/kernels/device" // declares devices, streams and events
)

// mixerPackages are the packages that implement kinds of attention.
var mixerPackages = []string{"krater/stages/attention"}

// typeCounts counts kind switches and optional interfaces in the code that is not for tests, built
// with the tag cuda.
func typeCounts(counts map[string]int) ([]string, error) {
	checked, faults, err := load()
	if err != nil || len(faults) > 0 {
		return faults, err
	}
	optional := map[*types.TypeName]bool{}
	for _, p := range checked {
		counts["kind switches"] += kindSwitches(p)
		if under(p.path, "krater/stages") || under(p.path, "krater/actors") || under(p.path, "krater/kernels") {
			optionalInterfaces(p, optional)
		}
	}
	counts["optional interfaces"] = len(optional)
	return nil, nil
}

// checkedPackage is a package with what the type checker found out.
type checkedPackage struct {
	path  string
	files []*ast.File
	info  *types.Info
}

// kindSwitches counts the places outside the mixers that ask for the kind of an attention:
// comparisons and switches of a kind, type assertions and type switches of a mixer.
func kindSwitches(p checkedPackage) (n int) {
	for _, m := range mixerPackages {
		if under(p.path, m) {
			return 0
		}
	}
	is := func(e ast.Expr, name string) bool {
		named, ok := types.Unalias(p.info.TypeOf(e)).(*types.Named)
		return ok && named.Obj().Name() == name && named.Obj().Pkg() != nil && under(named.Obj().Pkg().Path(), kindPackage)
	}
	p.inspect(func(node ast.Node) {
		switch x := node.(type) {
		case *ast.BinaryExpr:
			if (x.Op == token.EQL || x.Op == token.NEQ) && (is(x.X, kindType) || is(x.Y, kindType)) {
				n++
			}
		case *ast.SwitchStmt:
			if x.Tag != nil && is(x.Tag, kindType) {
				n++
			}
		case *ast.TypeAssertExpr: // x.(type) of a type switch is one as well
			if is(x.X, mixerType) {
				n++
			}
		}
	})
	return n
}

// optionalInterfaces adds the interfaces that values of a device, a stream or operators are
// asserted to.
func optionalInterfaces(p checkedPackage, found map[*types.TypeName]bool) {
	assert := func(x, target ast.Expr) {
		if call, ok := x.(*ast.CallExpr); ok && len(call.Args) == 1 && p.info.Types[call.Fun].IsType() {
			x = call.Args[0] // any(x).(T)
		}
		to, ok := types.Unalias(p.info.TypeOf(target)).(*types.Named)
		if ok && types.IsInterface(to) && ofDevice(p.info.TypeOf(x)) {
			found[to.Obj()] = true
		}
	}
	p.inspect(func(node ast.Node) {
		switch x := node.(type) {
		case *ast.TypeAssertExpr:
			if x.Type != nil {
				assert(x.X, x.Type)
			}
		case *ast.TypeSwitchStmt:
			value := subject(x)
			for _, clause := range x.Body.List {
				for _, target := range clause.(*ast.CaseClause).List {
					assert(value, target)
				}
			}
		}
	})
}

// ofDevice reports whether t is an interface of devicePackage, or one of operators: a method of it
// takes an interface of devicePackage, as operators take a stream.
func ofDevice(t types.Type) bool {
	declared := func(t types.Type) bool {
		named, ok := types.Unalias(t).(*types.Named)
		return ok && types.IsInterface(named) && named.Obj().Pkg() != nil && named.Obj().Pkg().Path() == devicePackage
	}
	if t == nil || !types.IsInterface(t) {
		return false
	}
	if declared(t) {
		return true
	}
	for method := range t.Underlying().(*types.Interface).Methods() {
		for v := range method.Signature().Params().Variables() {
			if declared(v.Type()) {
				return true
			}
		}
	}
	return false
}

// subject is x of switch x.(type).
func subject(s *ast.TypeSwitchStmt) ast.Expr {
	e := ast.Expr(nil)
	switch a := s.Assign.(type) {
	case *ast.ExprStmt:
		e = a.X
	case *ast.AssignStmt:
		e = a.Rhs[0]
	}
	return e.(*ast.TypeAssertExpr).X
}

func (p checkedPackage) inspect(visit func(ast.Node)) {
	for _, f := range p.files {
		ast.Inspect(f, func(n ast.Node) bool {
			if n != nil {
				visit(n)
			}
			return true
		})
	}
}

// goPackage is the output of `go list` for a package.
type goPackage struct {
	ImportPath, Dir, Export        string
	Imports                        []string
	GoFiles, CgoFiles, TestGoFiles []string
	XTestGoFiles                   []string
	Standard                       bool
	Module                         *struct{ Path string }
}

func (p goPackage) own() bool { return p.Module != nil && p.Module.Path == "krater" }

// list reads what `go list` says of the packages matching args.
func list(args ...string) ([]goPackage, error) {
	out, err := command("go", append([]string{"list", "-json=ImportPath,Dir,Export,Imports,GoFiles,CgoFiles,TestGoFiles,XTestGoFiles,Standard,Module"}, args...)...)
	if err != nil {
		return nil, err
	}
	var pkgs []goPackage
	for dec := json.NewDecoder(strings.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); err == io.EOF {
			return pkgs, nil
		} else if err != nil {
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
}

// load parses and type-checks the packages of the module with the tag cuda. It needs neither CUDA's
// headers nor a C compiler: names from C have no type.
func load() (checked []checkedPackage, faults []string, err error) {
	foreign, err := list("-deps", "-export", "./...")
	if err != nil {
		return nil, nil, err
	}
	exports := map[string]string{}
	for _, p := range foreign {
		exports[p.ImportPath] = p.Export
	}
	set := token.NewFileSet()
	imports := &ours{done: map[string]*types.Package{"unsafe": types.Unsafe}, incomplete: map[string]bool{}}
	imports.other = importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(exports[path])
	})
	pkgs, err := list("-deps", "-tags", "cuda", "./...") // a package comes after those it imports
	if err != nil {
		return nil, nil, err
	}
	for _, p := range pkgs {
		if !p.own() {
			continue
		}
		c, errs := imports.check(set, p)
		checked = append(checked, c)
		if !imports.incomplete[p.ImportPath] {
			for _, e := range errs {
				faults = append(faults, e.Error())
			}
		}
	}
	return checked, faults, nil
}

// ours imports packages of the module as type-checked, and others from export data.
type ours struct {
	done       map[string]*types.Package
	other      types.Importer
	incomplete map[string]bool // those with cgo, or below: errors of theirs are not errors of the code
}

func (o *ours) Import(path string) (*types.Package, error) {
	if p := o.done[path]; p != nil {
		return p, nil
	}
	return o.other.Import(path)
}

func (o *ours) check(set *token.FileSet, p goPackage) (checkedPackage, []error) {
	var errs []error
	c := checkedPackage{path: p.ImportPath, info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}}
	for _, name := range append(p.GoFiles, p.CgoFiles...) {
		f, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.files = append(c.files, f)
	}
	o.incomplete[p.ImportPath] = len(p.CgoFiles) > 0
	for _, imp := range p.Imports {
		if o.incomplete[imp] || imp == "gorgonia.org/cu" {
			o.incomplete[p.ImportPath] = true
		}
	}
	conf := types.Config{Importer: o, FakeImportC: true, Error: func(err error) { errs = append(errs, err) }}
	o.done[p.ImportPath], _ = conf.Check(p.ImportPath, set, c.files, c.info)
	return c, errs
}
