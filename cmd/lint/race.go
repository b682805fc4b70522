package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"path/filepath"
	"slices"
)

// listRace prints the packages whose tests run with the race detector.
func listRace(out io.Writer) error {
	pkgs, err := list("./...")
	if err != nil {
		return err
	}
	for _, p := range pkgs {
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			continue
		}
		together, err := concurrent(p)
		if err != nil {
			return err
		}
		if together {
			fmt.Fprintln(out, p.ImportPath)
		}
	}
	return nil
}

// concurrent reports whether a package has code that runs beside other code: whether it, not
// its tests, starts a goroutine or imports sync or sync/atomic.
func concurrent(p goPackage) (bool, error) {
	for _, name := range append(p.GoFiles, p.CgoFiles...) {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return false, err
		}
		if startsGoroutine(f) || slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool {
			return i.Path.Value == `"sync"` || i.Path.Value == `"sync/atomic"`
		}) {
			return true, nil
		}
	}
	return false, nil
}

func startsGoroutine(f *ast.File) (found bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		_, is := n.(*ast.GoStmt)
		found = found || is
		return !found
	})
	return found
}
