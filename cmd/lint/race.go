package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Packages with code that runs on several goroutines are tested with the race detector, all others
// without. If most tests of such a package only compute, or wait long, on one goroutine, then only
// the tests named here run with the detector.
var partly = []split{
	// Whole programs: what the program itself does on several goroutines, and many clients at the same time.
	// What they ask of doors, actors and the scheduler is in the tests of those packages, too.
	{"krater/cmd/krater/...", "Crowd|Ready|WhileLoading|StopWhileLoading|Drain|DrainTimeout|NothingIsLeft|ServeHeat|HeatKeeper|" +
		"LogOfProgress|LoadsShowBars|LossyWriter|TracePage|Pull.*|OTLP|ChatWithAServer|FormatsOverHTTP",
		"BatchBehind|BatchDir|TogetherAndAlone|Vanish|LongPromptsBesideAStream|QueueIsBounded|SmallKVCache|HugePromptsOfClientsThatLeave|EveryRouteGivesTheSame|" +
			"EvictedBlocksAreKept|Preempted|Ranks|ServeOnRanks|HeatmapIsExact|BenchServe|Topologies"},
	// The arithmetic is the same on one goroutine; actors use all of it on several.
	{"krater/kernels/cpu", "Team.*|Nodes?[A-Z].*|ThreadsNeverMoreThanCores|WorkersAreBound|Budget.*|StreamsAreIndependent|Slabs|" +
		"FaultsInKernels|.*OfSeveralStreams|.*OfManyThreads|Read(Bandwidth|StaysInside|ReachesEveryPage)", ""},
	// Prompts and generated rows in turn, moves and faults beside them. The rest is one step after the other.
	{"krater/actors/placement", "Pipeline.*|RequestsOnDevice|PhasesTakeTurns|Learned(Together|Refused)|DecodeAfterPrompt|EveryStrategyOnDevice|Refused(Calls|Copies)|" +
		"PoolPanics|CopyLanes|FastCopies|CopiesBeforeFoundExperts|BudgetIsShared|PromptsShareAPass", "Learned|GoldenBesideDevice|CopiesBesideWork|WavesWithLoads|SyntheticModel"},
	{"krater/stages/weights/quant", "Deterministic", ""},
	{"krater/stages/text/tokenizer", "ConcurrentUse", ""},
	{"krater/stages/text/grammar", "ConcurrentUse", ""},
	{"krater/stages/weights/cache", ".*Together|OneReading|BothFormats|TinyLoad", ""},
	{"krater/stages/synth", "Load|Pack|WriteSafetensors|WriteFails", ""},
	{"krater/scheduler/batchqueue", "ContentWhileItIsNamed|SecondProcess", ""},
	// Most of the time goes into the reference's arithmetic.
	{"krater/bench/cards", "Parallel", ""},
	{"krater/stages/load", "Model|DenseModel|RanksOfModel|CodedWeights|GivenExperts|ModelOutOfMemory", ""},
	{"krater/bench/serve", "ManyStreams|Figures|Faults|PromptsAreNew|Conversations", ""},
	// A lock protects captures from several goroutines; no test makes any.
	{"krater/stages/compare", "", ""},
}

// split says which tests of some packages run with the race detector.
type split struct {
	packages string // a package, or "x/..."
	tests    string // a regular expression of what follows "Test" in their names; "": none
	nightly  string // of tests that the nightly runs with the detector as well
}

// testPackage is a package with tests.
type testPackage struct {
	path   string
	race   bool     // its code runs on several goroutines
	tests  []string // names of the tests
	tagged []string // those with the tag !race: the detector is too slow for them or makes them wrong
}

// listTests prints which tests run with the race detector ("race") or without ("plain"): a line is
// the arguments of one run of go test. Each test is in one of them. "race-nightly" has more than "race".
func listTests(out io.Writer, which string) error {
	pkgs, err := testPackages()
	if err != nil {
		return err
	}
	splits := slices.Clone(partly)
	if which == "race-nightly" {
		for i, s := range splits {
			if s.nightly != "" {
				splits[i].tests += "|" + s.nightly
			}
		}
	}
	race, plain, err := divide(splits, pkgs)
	if err != nil {
		return err
	}
	if which != "plain" {
		plain = race
	}
	_, err = fmt.Fprintln(out, strings.Join(plain, "\n"))
	return err
}

// divide says how the tests run. It fails for an entry of partly that matches nothing, and for one that
// matches tests of the packages of other entries: they all run in one go test with one pattern.
func divide(partly []split, pkgs []testPackage) (race, plain []string, err error) {
	var names []string
	for _, s := range partly {
		if s.tests != "" {
			names = append(names, s.tests)
		}
	}
	named := "^Test(" + strings.Join(names, "|") + ")$"
	match, err := regexp.Compile(named)
	if err != nil {
		return nil, nil, err
	}
	var all, some, without, tagged, taggedTests, others []string
	used := map[string]bool{}
	for _, p := range pkgs {
		i := slices.IndexFunc(partly, func(s split) bool {
			prefix, below := strings.CutSuffix(s.packages, "/...")
			return p.path == prefix || below && under(p.path, prefix)
		})
		own := regexp.MustCompile("$x") // nothing
		if i >= 0 && partly[i].tests != "" {
			if own, err = regexp.Compile("^Test(" + partly[i].tests + ")$"); err != nil {
				return nil, nil, err
			}
		}
		switch {
		case slices.ContainsFunc(p.tests, own.MatchString):
			some = append(some, p.path)
			used[partly[i].packages] = true
			for _, test := range p.tests {
				if match.MatchString(test) && !own.MatchString(test) {
					others = append(others, strings.TrimPrefix(p.path, "krater/")+"."+test)
				}
			}
		case i < 0 && p.race:
			all = append(all, p.path)
			if len(p.tagged) > 0 {
				tagged = append(tagged, p.path)
				taggedTests = append(taggedTests, p.tagged...)
			}
		default:
			without = append(without, p.path)
		}
	}
	for _, s := range partly {
		if s.tests != "" && !used[s.packages] {
			return nil, nil, fmt.Errorf("cmd/lint/race.go: %s has no test %s", s.packages, s.tests)
		}
	}
	if len(others) > 0 {
		return nil, nil, fmt.Errorf("cmd/lint/race.go: names given for other packages match %s", strings.Join(others, ", "))
	}
	add := func(to *[]string, flags string, pkgs []string) {
		if len(pkgs) > 0 {
			*to = append(*to, flags+strings.Join(pkgs, " "))
		}
	}
	add(&race, "", all)
	add(&race, "-run "+named+" ", some)
	add(&plain, "-skip "+named+" ", some)
	add(&plain, "-run ^("+strings.Join(taggedTests, "|")+")$ ", tagged)
	add(&plain, "", without)
	return race, plain, nil
}

// testPackages reads the packages that have tests.
func testPackages() (found []testPackage, err error) {
	pkgs, err := list("./...")
	if err != nil {
		return nil, err
	}
	for _, p := range pkgs {
		t := testPackage{path: p.ImportPath}
		for _, name := range p.GoFiles {
			f, err := parse(p.Dir, name)
			if err != nil {
				return nil, err
			}
			t.race = t.race || concurrent(f)
		}
		for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			f, err := parse(p.Dir, name)
			if err != nil {
				return nil, err
			}
			tests := testNames(f)
			t.tests = append(t.tests, tests...)
			if withoutRace(f) {
				t.tagged = append(t.tagged, tests...)
			}
		}
		if len(t.tests) > 0 {
			found = append(found, t)
		}
	}
	return found, nil
}

func testNames(f *ast.File) (names []string) {
	for _, d := range f.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" {
			names = append(names, f.Name.Name)
		}
	}
	return names
}

func parse(dir, name string) (*ast.File, error) {
	return parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution|parser.ParseComments)
}

// concurrent reports whether a file starts a goroutine or uses sync or sync/atomic for more than a value
// that is made once.
func concurrent(f *ast.File) (found bool) {
	names := map[string]bool{} // of the two packages in this file
	for _, i := range f.Imports {
		if path := strings.Trim(i.Path.Value, `"`); path == "sync" || path == "sync/atomic" {
			name := filepath.Base(path)
			if i.Name != nil {
				name = i.Name.Name
			}
			names[name] = true
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = true
		case *ast.SelectorExpr:
			if of, ok := n.X.(*ast.Ident); ok && names[of.Name] {
				found = found || !strings.HasPrefix(n.Sel.Name, "OnceValue")
			}
		}
		return !found
	})
	return found
}

// withoutRace reports whether the race detector leaves a file out.
func withoutRace(f *ast.File) bool {
	for _, c := range f.Comments {
		if c.Pos() < f.Package && strings.HasPrefix(c.List[0].Text, "//go:build !race") {
			return true
		}
	}
	return false
}
