package bin_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"krater/kernels/cuda/bin"
	"krater/kernels/cuda/launch"
)

const again = "; run `make cuda-kernels`"

func read(t *testing.T) (*bin.Manifest, []bin.Resources) {
	t.Helper()
	text, err := os.ReadFile("MANIFEST")
	if err != nil {
		t.Fatal(err)
	}
	m, err := bin.ParseManifest(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.String(); got != string(text) {
		t.Fatalf("MANIFEST, read and written again, is\n%s", got)
	}
	table, err := os.ReadFile("RESOURCES")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := bin.ParseResources(table)
	if err != nil {
		t.Fatal(err)
	}
	if got := bin.FormatResources(rows); got != string(table) {
		t.Fatalf("RESOURCES, read and written again, is\n%s", got)
	}
	return m, rows
}

// stale returns the names of the files in folder src that differ from the manifest.
func stale(m *bin.Manifest, src string) ([]string, error) {
	var out []string
	files, err := filepath.Glob(filepath.Join(src, "*.cu"))
	if err != nil {
		return nil, err
	}
	made := 0
	for _, f := range files {
		base := filepath.Base(f)
		list, err := bin.Includes(src, base)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(base, ".cu")
		for _, arch := range []string{bin.PTX, bin.Hopper} {
			a, ok := m.Artifact[bin.ArtifactName(name, arch)]
			if !ok {
				out = append(out, base+" was not compiled for "+arch)
				continue
			}
			made++
			if got, want := fmt.Sprint(a.Sources), fmt.Sprint(list); got != want {
				out = append(out, fmt.Sprintf("%s includes %s, was compiled with %s", base, want, got))
			}
		}
		for _, s := range list {
			text, err := os.ReadFile(filepath.Join(src, s))
			if err != nil {
				return nil, err
			}
			if m.Sources[s] != bin.SourceSum(text) {
				out = append(out, s+" (of "+base+") has changed since it was compiled")
			}
		}
	}
	if made != len(m.Artifact) {
		out = append(out, fmt.Sprintf("%d artifacts, %d of them with a source", len(m.Artifact), made))
	}
	return out, nil
}

func TestArtifactsAreOfTheSources(t *testing.T) {
	m, _ := read(t)
	faults, err := stale(m, "../src")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range faults {
		t.Error(f + again)
	}
	for name, a := range m.Artifact {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Errorf("%v%s", err, again)
		} else if bin.Sum(content) != a.Sum {
			t.Errorf("%s is not the file that was compiled%s", name, again)
		}
	}
}

// TestStaleArtifactsAreFound tests the check itself.
func TestStaleArtifactsAreFound(t *testing.T) {
	src := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(src, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("a.cu", "#include \"a.cuh\"\nint a;\n")
	write("a.cuh", "int b;\n")
	list, err := bin.Includes(src, "a.cu")
	if err != nil || fmt.Sprint(list) != "[a.cu a.cuh]" {
		t.Fatal(list, err)
	}
	m := &bin.Manifest{Compiler: "1", Flags: map[string]string{bin.PTX: "-x"}, Sources: map[string]string{}, Artifact: map[string]bin.Artifact{}}
	note := func() {
		for _, s := range []string{"a.cu", "a.cuh"} {
			text, err := os.ReadFile(filepath.Join(src, s))
			if err != nil {
				t.Fatal(err)
			}
			m.Sources[s] = bin.SourceSum(text)
		}
		for _, arch := range []string{bin.PTX, bin.Hopper} {
			m.Artifact[bin.ArtifactName("a", arch)] = bin.Artifact{Sum: "s", Sources: list}
		}
	}
	expect := func(what string, faulty bool) {
		t.Helper()
		if faults, err := stale(m, src); err != nil || (len(faults) > 0) != faulty {
			t.Errorf("%s: %v, %v", what, faults, err)
		}
	}
	note()
	expect("as compiled", false)
	hash := m.SourceHash("a")
	write("a.cuh", "int c;\n")
	expect("a changed header", true)
	note()
	expect("compiled again", false)
	if m.SourceHash("a") == hash || m.SourceHash("b") != "" {
		t.Error("a hash that does not tell sources apart")
	}
	write("b.cu", "int d;\n")
	expect("a new source", true)
	if err := os.Remove(filepath.Join(src, "b.cu")); err != nil {
		t.Fatal(err)
	}
	write("a.cu", "int a;\n")
	expect("a header no longer included", true)
}

// TestSourceSum: comments and blank lines do not count, everything else does.
func TestSourceSum(t *testing.T) {
	sum := func(s string) string { return bin.SourceSum([]byte(s)) }
	want := sum("int a = 1'000; // first\nchar *b = \"// no \\\" comment\";\nchar c = '\"'; /* two\nlines */ int d;\n")
	for _, same := range []string{
		"// a title\n\n\tint a = 1'000;\nchar *b = \"// no \\\" comment\"; // second\n\n  char c = '\"'; /* */ int d;",
		"int a = 1'000; /* first */\nchar *b = \"// no \\\" comment\";\nchar c = '\"'; /**/ int d; // open /*",
	} {
		if sum(same) != want {
			t.Errorf("counted as a change: %q", same)
		}
	}
	for _, other := range []string{
		"int a = 1'001;\nchar *b = \"// no \\\" comment\";\nchar c = '\"'; int d;\n",
		"int a = 1'000;\nchar *b = \"// a \\\" comment\";\nchar c = '\"'; int d;\n",
		"int a = 1'000;\nchar *b = \"// no \\\" comment\";\nchar c = '\"'; int e;\n",
	} {
		if sum(other) == want {
			t.Errorf("not counted: %q", other)
		}
	}
}

// excuse has the most bytes that a kernel may spill, stored or read back, and why.
type excuse struct {
	bytes int // per thread
	why   string
}

// excused are the kernels that may spill registers, by "kernel architecture".
var excused = map[string]excuse{
	"kr_moe_int4_g32_t64 sm_120":  {8, fewBytes},
	"kr_moe_int4_g64_t64 sm_120":  {4, fewBytes},
	"kr_moe_int8_g32_t64 sm_120":  {24, fewBytes},
	"kr_moe_int8_g64_t64 sm_120":  {24, fewBytes},
	"kr_moe_int8_g128_t64 sm_120": {24, fewBytes},

	"kr_delta_chunks compute_80": {28, aChunk},
	"kr_delta_chunks sm_86":      {4, aChunk},
	"kr_delta_chunks sm_89":      {4, aChunk},
	"kr_delta_chunks sm_90a":     {44, aChunk},
	"kr_delta_chunks sm_120":     {32, aChunk},

	"kr_kda_rule_bf16_32 compute_80": {32, aRow},
	"kr_kda_rule_bf16_32 sm_86":      {40, aRow},
	"kr_kda_rule_bf16_32 sm_89":      {40, aRow},
	"kr_kda_rule_bf16_32 sm_90a":     {48, aRow},
	"kr_kda_rule_bf16_32 sm_120":     {24, aRow},
	"kr_kda_rule_float_32 sm_90a":    {8, aRow},
	"kr_kda_rule_float_32 sm_120":    {72, aRow},

	"kr_kda_chunks compute_80": {24, aSmallChunk},
	"kr_kda_chunks sm_86":      {16, aSmallChunk},
	"kr_kda_chunks sm_89":      {16, aSmallChunk},
	"kr_kda_chunks sm_90a":     {20, aSmallChunk},
	"kr_kda_chunks sm_120":     {16, aSmallChunk},

	"kr_gemv_gate_up_int4_g128_int8_g128 sm_90a": {4, oneWord},
	"kr_gemv_gate_up_int3_g128_int8_g128 sm_90a": {4, oneWord},

	"kr_gqa_prefill_bf16_128_h sm_90a": {72, aTile},
	"kr_gqa_prefill_bf16_256_h sm_90a": {312, aTile},
	"kr_gqa_prefill_e4m3_64_h sm_90a":  {60, aTile},
	"kr_gqa_prefill_e4m3_128_h sm_90a": {80, aTile},
	"kr_gqa_prefill_e4m3_256_h sm_90a": {308, aTile},
	"kr_gqa_prefill_i8_64_h sm_90a":    {64, aTile},
	"kr_gqa_prefill_i8_128_h sm_90a":   {112, aTile},
	"kr_gqa_prefill_i8_256_h sm_90a":   {432, aTile},

	"kr_gqa_prefill_window_bf16_64_h sm_90a":  {16, aTile},
	"kr_gqa_prefill_window_bf16_128_h sm_90a": {92, aTile},
	"kr_gqa_prefill_window_e4m3_64_h sm_90a":  {76, aTile},
	"kr_gqa_prefill_window_e4m3_128_h sm_90a": {76, aTile},
	"kr_gqa_prefill_window_i8_64_h sm_90a":    {84, aTile},
	"kr_gqa_prefill_window_i8_128_h sm_90a":   {108, aTile},

	"kr_gqa_prefill_window_bf16_256_h sm_90a": {312, aTile},
	"kr_gqa_prefill_window_e4m3_256_h sm_90a": {328, aTile},
	"kr_gqa_prefill_window_i8_256_h sm_90a":   {428, aTile},

	"kr_gqa_prefill_bf16_512_h sm_90a":        {340, aTile},
	"kr_gqa_prefill_window_bf16_512_h sm_90a": {324, aTile},
	"kr_gqa_prefill_e4m3_512_h sm_90a":        {292, aTile},
	"kr_gqa_prefill_window_e4m3_512_h sm_90a": {324, aTile},
	"kr_gqa_prefill_i8_512_h sm_90a":          {428, aTile},
	"kr_gqa_prefill_window_i8_512_h sm_90a":   {444, aTile},
	"kr_gemv_ring_cut_int4_g128_h sm_90a":     {72, aRun},
	"kr_gemv_ring_cut_int3_g64_h sm_90a":      {72, aRun},
	"kr_gemv_ring_cut_int3_g128_h sm_90a":     {72, aRun},
}

// Most of what these kernels spill is used outside the loops over keys; a few reads may be inside.
// Figures are in bench/results/gqa.md.
const aTile = "most of what is spilled is used once per tile of rows; all registers of a multiprocessor are taken"

const oneWord = "one word is stored and read once by each thread; four blocks have all registers of a multiprocessor"

const aRun = "in the warps that copy, which have 32 registers"

const aChunk = "at most once per chunk of 64 rows, for two blocks a multiprocessor"

const aRow = "at most once for a row of 128 values, beside the state's 64 KB, for three blocks a multiprocessor"

const aSmallChunk = "at most once per chunk of 32 rows, for two blocks a multiprocessor"

const fewBytes = "outside of the loop over K, for two blocks a multiprocessor"

func TestKernelsKeepTheirRegisters(t *testing.T) {
	_, rows := read(t)
	if len(rows) < 10 {
		t.Fatalf("%d kernels only", len(rows))
	}
	hopper := map[string]bool{} // kernels that run in place of another on Hopper
	for _, r := range rows {
		if name, ok := strings.CutSuffix(r.Kernel, "_h"); ok {
			hopper[name] = true
		}
	}
	used := map[string]bool{}
	for _, r := range rows {
		if r.Shared > 48<<10 || r.Registers > 255 {
			t.Errorf("%s for %s: %d bytes of static shared memory, %d registers", r.Kernel, r.Arch, r.Shared, r.Registers)
		}
		if r.SpillStores == 0 && r.SpillLoads == 0 && !r.Serialized || r.Arch == bin.Hopper && hopper[r.Kernel] {
			continue
		}
		key := r.Kernel + " " + r.Arch
		used[key] = true
		if most := excused[key].bytes; r.Serialized || max(r.SpillStores, r.SpillLoads) > most {
			t.Errorf("%s for %s (%s.cu): %d bytes spilled, %d read back, %d are excused; wgmma serialised: %v",
				r.Kernel, r.Arch, r.Source, r.SpillStores, r.SpillLoads, most, r.Serialized)
		}
	}
	for key := range excused {
		if !used[key] {
			t.Errorf("%s needs no excuse any more", key)
		}
	}
}

var export = regexp.MustCompile(`(?m)^[ \t]*KR_EXPORT\((\w+)\)`)

// TestExportedKernelsAreCompiled: the kernels that the emulator finds by name are also in the
// artifacts. It ignores names that macros make.
func TestExportedKernelsAreCompiled(t *testing.T) {
	_, rows := read(t)
	built := map[string]bool{}
	for _, r := range rows {
		built[r.Kernel] = true
	}
	files, err := filepath.Glob("../src/*.cu*")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range export.FindAllStringSubmatch(withoutMacros(string(text)), -1) {
			n++
			if !built[m[1]] {
				t.Errorf("%s exports %s, which no artifact has%s", f, m[1], again)
			}
		}
	}
	if n == 0 {
		t.Error("no source exports a kernel")
	}
}

// withoutMacros leaves out the lines of #define directives.
func withoutMacros(text string) string {
	var b strings.Builder
	inside := false
	for line := range strings.Lines(text) {
		inside = inside || strings.HasPrefix(strings.TrimSpace(line), "#define")
		if !inside {
			b.WriteString(line)
		}
		inside = inside && strings.HasSuffix(strings.TrimRight(line, " \t\r\n"), "\\")
	}
	return b.String()
}

// TestNamedKernelsAreCompiled: the kernels that Go code launches by name are in the artifacts,
// and also in those for compute_80 unless only Hopper has the kernel.
func TestNamedKernelsAreCompiled(t *testing.T) {
	_, rows := read(t)
	built := map[string]map[string]bool{bin.PTX: {}, bin.Hopper: {}}
	for _, r := range rows {
		if built[r.Arch] == nil {
			built[r.Arch] = map[string]bool{}
		}
		built[r.Arch][r.Kernel] = true
	}
	for _, arch := range bin.Assembled {
		if !maps.Equal(built[arch], built[bin.PTX]) {
			t.Errorf("not every kernel was assembled for %s%s", arch, again)
		}
	}
	names := named(t)
	for i := range launch.Kernels() { // of the packages that wanted imports
		names[launch.Kernel(i).String()] = "package variables"
	}
	if len(names) == 0 {
		t.Fatal("no kernel is launched by anybody")
	}
	for name, where := range names {
		if !built[bin.Hopper][name] {
			t.Errorf("%s, launched in %s, is in no artifact for %s%s", name, where, bin.Hopper, again)
		}
		if !strings.HasSuffix(name, "_h") && !built[bin.PTX][name] {
			t.Errorf("%s, launched in %s, is in no artifact for %s%s", name, where, bin.PTX, again)
		}
	}
}

// named finds launch.Named("..."). A call whose argument is no literal is allowed if
// families_test.go imports the package, so that its variables have registered the name.
func named(t *testing.T) map[string]string {
	t.Helper()
	names := map[string]string{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Named" || fmt.Sprint(sel.X) != "launch" {
				return true
			}
			if lit, ok := call.Args[0].(*ast.BasicLit); ok {
				name, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Errorf("%s: %v", path, err)
				}
				names[name] = path
			} else if dir := filepath.Base(filepath.Dir(path)); !imported[dir] {
				t.Errorf("%s makes kernel names at run time: have families_test.go import package %s", path, dir)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
