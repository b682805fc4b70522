package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"slices"
	"strings"
)

const (
	maxFile     = 500 // lines of a source file
	maxFunction = 70  // lines of a function
)

// mainLines counts package main of the program, without tests.
const mainLines = "lines of cmd/krater"

// exceptions are the files and functions that may be longer, and by how much.
var exceptions = map[string]int{
	"kernels/cpu/_gen/convertint.go emitQuantI8": 73,
	"kernels/cpu/_gen/convertint.go emitWidenI8": 71,
	"models/train-krater-tiny/prepare_corpus.py": 750,
}

// sources are the extensions of hand-written files: code, then prose.
var (
	code  = []string{".go", ".cu", ".cuh", ".cpp", ".h", ".sh", ".py", ".mjs", ".js", ".css", ".mk"}
	prose = []string{".md", ".yml", ".yaml"}
)

// sourceFaults checks the length of files and functions and counts phrases, in all files that git
// tracks or would. It skips generated files, and the linter itself, which contains the phrases.
func sourceFaults(counts map[string]int) ([]string, error) {
	list, err := command("git", "ls-files", "-co", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	var faults []string
	for _, file := range strings.Fields(list) {
		isCode := slices.Contains(code, path.Ext(file))
		if !isCode && !slices.Contains(prose, path.Ext(file)) || strings.HasPrefix(file, "cmd/lint/") || strings.Contains(file, "testdata/") {
			continue
		}
		text, err := os.ReadFile(file)
		if os.IsNotExist(err) { // deleted, and git does not know it yet
			continue
		} else if err != nil {
			return nil, err
		}
		countPhrases(string(text), counts)
		if isCode {
			found, err := longOnes(file, string(text), counts)
			if err != nil {
				return nil, err
			}
			faults = append(faults, found...)
		}
	}
	return faults, nil
}

// longOnes returns what is too long in a file. It counts the long functions of tests. It also
// returns the lengths of all other long items, which shows exceptions that are no longer needed.
func longOnes(file, text string, counts map[string]int) (faults []string, err error) {
	tooLong := func(name string, lines, limit int) {
		if lines > limit {
			counts[name] = lines
			limit = max(limit, exceptions[name])
		}
		if lines > limit {
			faults = append(faults, fmt.Sprintf("%s has %d lines, and at most %d are allowed", name, lines, limit))
		}
	}
	if !strings.HasSuffix(file, ".go") {
		if !strings.Contains(text[:min(len(text), 500)], "DO NOT EDIT") {
			tooLong(file, strings.Count(text, "\n"), maxFile)
		}
		return faults, nil
	}
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, file, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(tree) {
		return nil, err
	}
	tooLong(file, strings.Count(text, "\n"), maxFile)
	if path.Dir(file) == "cmd/krater" && !strings.HasSuffix(file, "_test.go") {
		counts[mainLines] += strings.Count(text, "\n")
	}
	for _, d := range tree.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		lines := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1
		if !strings.HasSuffix(file, "_test.go") {
			tooLong(file+" "+functionName(f), lines, maxFunction)
		} else if lines > maxFunction {
			counts["long test functions"]++
		}
	}
	return faults, nil
}

// functionName returns the name of a function, or Type.Method.
func functionName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	t := f.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.Ident:
			return x.Name + "." + f.Name.Name
		default:
			return f.Name.Name
		}
	}
}
