// Package deploy holds files that run and watch a server, and this test of them: the server exports
// every metric that the dashboard and the alerts use, and the program has every flag of the unit and
// the container file.
package deploy

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// metric is a metric as a source file describes it.
type metric struct {
	labels    []string
	histogram bool
}

// exported reads the metrics that the doors describe, by full name: calls of desc
// and prometheus.NewDesc, and which of them become histograms.
func exported(t *testing.T) map[string]*metric {
	t.Helper()
	files, err := filepath.Glob("../transport/*/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no sources: %v", err)
	}
	all, named := map[string]*metric{"krater:log_lines_dropped": {}}, map[string]*metric{} // the former is the program's
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, v := range spec.Values {
				if name, m := described(v); m != nil {
					all[name], named[spec.Names[i].Name] = m, m
				}
			}
			return true
		})
		ast.Inspect(f, func(n ast.Node) bool { // {descTTFT, s.TTFT}
			if pair, ok := n.(*ast.CompositeLit); ok && pair.Type == nil && len(pair.Elts) == 2 {
				if id, ok := pair.Elts[0].(*ast.Ident); ok && named[id.Name] != nil {
					named[id.Name].histogram = true
				}
			}
			return true
		})
	}
	return all
}

// described reads a call of desc or prometheus.NewDesc; nil for anything else.
func described(e ast.Expr) (string, *metric) {
	call, ok := e.(*ast.CallExpr)
	if !ok || len(call.Args) < 2 {
		return "", nil
	}
	prefix := ""
	switch f := call.Fun.(type) {
	case *ast.Ident:
		if f.Name != "desc" {
			return "", nil
		}
		prefix = "krater:"
	case *ast.SelectorExpr:
		if f.Sel.Name != "NewDesc" {
			return "", nil
		}
	default:
		return "", nil
	}
	name, m := "", &metric{}
	for i, arg := range call.Args {
		ast.Inspect(arg, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			s, _ := strconv.Unquote(lit.Value)
			switch i {
			case 0:
				name = prefix + s
			case 1: // the help
			default:
				m.labels = append(m.labels, s)
			}
			return true
		})
	}
	return name, m
}

// texts are all strings below a decoded JSON or YAML value whose key is want.
func texts(v any, want string) []string {
	var out []string
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if s, ok := x.(string); ok && k == want {
				out = append(out, s)
			} else {
				out = append(out, texts(x, want)...)
			}
		}
	case []any:
		for _, x := range v {
			out = append(out, texts(x, want)...)
		}
	}
	return out
}

// decode reads a file of this folder.
func decode(t *testing.T, file string) any {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if strings.HasSuffix(file, ".json") {
		err = json.Unmarshal(text, &v)
	} else {
		err = yaml.Unmarshal(text, &v)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return v
}

var (
	selector = regexp.MustCompile(`(krater:[a-z0-9_]+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)\s*"`)
	suffix   = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// faults says what an expression asks for that no server has, and notes what it asks for.
func faults(expr string, have map[string]*metric, asked map[string]bool) []string {
	var out []string
	for _, s := range selector.FindAllStringSubmatch(expr, -1) {
		name, m := s[1], have[s[1]]
		if base := suffix.ReplaceAllString(name, ""); m == nil && base != name {
			if m = have[base]; m != nil && !m.histogram {
				out = append(out, name+": no histogram")
			}
			name = base
		} else if m != nil && m.histogram {
			out = append(out, name+": a histogram has _bucket, _sum and _count")
		}
		if m == nil {
			out = append(out, s[1]+" is not exported")
			continue
		}
		asked[name] = true
		for _, l := range matcher.FindAllStringSubmatch(s[2], -1) {
			if !slices.Contains(append([]string{"instance", "job", "le"}, m.labels...), l[1]) {
				out = append(out, s[1]+" has no label "+l[1])
			}
		}
	}
	return out
}

// TestMetrics: dashboard and rules ask for what is exported, and the dashboard for all of it.
func TestMetrics(t *testing.T) {
	have := exported(t)
	if len(have) < 20 {
		t.Fatalf("%d metrics found in the sources", len(have))
	}
	for _, c := range []struct {
		file string
		all  bool
	}{{"grafana/krater.json", true}, {"prometheus/krater.rules.yaml", false}} {
		exprs := texts(decode(t, c.file), "expr")
		if len(exprs) == 0 {
			t.Errorf("%s: no expression", c.file)
		}
		asked := map[string]bool{}
		for _, e := range exprs {
			for _, fault := range faults(e, have, asked) {
				t.Errorf("%s: %s, in %q", c.file, fault, e)
			}
		}
		for name := range have {
			if c.all && !asked[name] {
				t.Errorf("%s does not show %s", c.file, name)
			}
		}
	}
}

// TestMetricsBites holds the check itself to account.
func TestMetricsBites(t *testing.T) {
	have := exported(t)
	for expr, want := range map[string]int{
		`rate(krater:generation_tokens_total{instance="a"}[1m])`:              0,
		`krater:request_success{finished_reason="stop"}`:                      0,
		`rate(krater:time_to_first_token_seconds_bucket{le="1"}[1m])`:         0,
		`krater:batch_lines{state="running"}`:                                 0,
		`krater:generation_tokens`:                                            1,
		`krater:request_success{reason="stop"}`:                               1,
		`krater:time_to_first_token_seconds`:                                  1,
		`krater:num_requests_running_count / krater:num_requests_running_sum`: 2,
	} {
		if got := faults(expr, have, map[string]bool{}); len(got) != want {
			t.Errorf("%s: %q, want %d", expr, got, want)
		}
	}
}

// TestConfigs: what else is YAML can be read, and the example loads the rules.
func TestConfigs(t *testing.T) {
	config, ok := decode(t, "prometheus/prometheus.yaml").(map[string]any)
	if !ok || !reflect.DeepEqual(config["rule_files"], []any{"krater.rules.yaml"}) {
		t.Errorf("rule_files: %v", config["rule_files"])
	}
	if jobs := texts(config, "job_name"); !slices.Equal(jobs, []string{"krater"}) {
		t.Errorf("jobs %q: the rules look for krater", jobs)
	}
	tested := strings.Join(texts(decode(t, "prometheus/krater.rules.test.yaml"), "labels"), "\n")
	for _, alert := range texts(decode(t, "prometheus/krater.rules.yaml"), "alert") {
		if !strings.Contains(tested, `"`+alert+`"`) {
			t.Errorf("no rule test has %s firing", alert)
		}
	}
}

var (
	metricName = regexp.MustCompile(`krater:[a-z0-9_]+`)
	link       = regexp.MustCompile(`\]\(([^):#]+)\)`)
	flagUse    = regexp.MustCompile(`--([a-z][a-z0-9-]+)`)
	fieldTag   = regexp.MustCompile("(?m)^\\s*([A-Z]\\w*)\\s+[\\w.\\[\\]]+\\s+`([^`]*help:[^`]*)`")
	nameTag    = regexp.MustCompile(`\bname:"([^"]+)"`)
	hump       = regexp.MustCompile(`([a-z0-9])([A-Z])`)
)

// documents are the pages for people who run a server.
var documents = []string{"../docs/getting-started.md", "../docs/operations.md", "../docs/troubleshooting.md"}

// TestDocuments: metrics that they name are exported, files that they link are there.
func TestDocuments(t *testing.T) {
	have := exported(t)
	for _, file := range documents {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range metricName.FindAllString(string(text), -1) {
			if have[name] == nil {
				t.Errorf("%s: %s is not exported", file, name)
			}
		}
		links := link.FindAllStringSubmatch(string(text), -1)
		if len(links) == 0 {
			t.Errorf("%s has no link", file)
		}
		for _, l := range links {
			if _, err := os.Stat(filepath.Join("../docs", l[1])); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

// TestFlags: flags that documents, unit, container file and dashboard name are flags of the program.
func TestFlags(t *testing.T) {
	var files []string
	for _, pattern := range []string{"../cmd/krater/*.go", "../cmd/krater/*/*.go", "../actors/local/config/*.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(pattern, err)
		}
		files = append(files, found...)
	}
	// Of podman build, run and stop, of COPY and git rev-parse; and --port of other servers.
	flags := map[string]bool{"rm": true, "network": true, "time": true, "from": true, "chown": true, "build-arg": true, "short": true, "port": true,
		"now": true, "help": true} // systemctl enable; every command
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fieldTag.FindAllStringSubmatch(string(text), -1) {
			name := strings.ToLower(hump.ReplaceAllString(f[1], "$1-$2"))
			if n := nameTag.FindStringSubmatch(f[2]); n != nil {
				name = n[1]
			}
			flags[name] = true
			if strings.Contains(f[2], "negatable:") {
				flags["no-"+name] = true
			}
		}
	}
	for _, file := range append(documents, "systemd/krater.service", "Containerfile", "grafana/krater.json", "prometheus/krater.rules.yaml") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		uses := flagUse.FindAllStringSubmatch(string(text), -1)
		if len(uses) == 0 {
			t.Errorf("%s names no flag", file)
		}
		for _, use := range uses {
			if !flags[use[1]] {
				t.Errorf("%s: no flag --%s", file, use[1])
			}
		}
	}
}

// TestReleaseScripts parses the scripts of releases, and turns a page of help into a manual page.
func TestReleaseScripts(t *testing.T) {
	for _, script := range []string{"release/release.sh", "release/module.sh"} {
		if out, err := exec.Command("bash", "-n", script).CombinedOutput(); err != nil {
			t.Errorf("%s: %v %s", script, err, out)
		}
	}
	man := exec.Command("awk", "-v", "title=KRATER-X", "-v", "version=1.0", "-v", "date=2026-01-31", "-f", "release/man.awk")
	man.Stdin = strings.NewReader("NAME\n  krater x - Does it.\n\nCOMMANDS\n Start\n  x y  First.\n       Second.\n\nOPTIONS\n  --a-b=C\n      'quoted'\n      end.\n\nEXAMPLES\n  What.\n    krater x \\ y\n")
	got, err := man.Output()
	if err != nil {
		t.Fatal(err)
	}
	want := `.TH KRATER-X 1 2026-01-31 "krater 1.0" "Krater"
.SH NAME
krater x \- Does it.
.SH COMMANDS
.SS Start
.TP
.B x y
First.
Second.
.SH OPTIONS
.TP
.B \-\-a\-b=C
\&'quoted'
end.
.SH EXAMPLES
What.
.PP
.nf
.RS 4
krater x \e y
.RE
.fi
`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
