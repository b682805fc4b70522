package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/cmd/krater/wizard"
	"krater/kernels/machine"
	"krater/scheduler/planner/rates"
	"krater/stages/synth"
)

// TestEstimate holds the outlook of choices to what the commands behind it say.
func TestEstimate(t *testing.T) {
	m := machine.Here()
	cards := []setupGPU{{"NVIDIA GeForce RTX 3090", 24 << 30}}
	o := estimate(wizard.Settings{}, nil, m, nil)
	if o.Trouble != "" || len(o.Budgets) != 1 || !o.Budgets[0].Fits || len(o.Budgets[0].Parts) < 8 || len(o.Speed) != 1 || !strings.HasPrefix(o.Speed[0], "decode: ") {
		t.Errorf("krater-tiny: %+v", o)
	}
	if !slices.Contains(o.Hidden, "decode-strategy") {
		t.Errorf("strategies without a GPU: %v", o.Hidden)
	}
	unmeasured := estimate(wizard.Settings{"cache-dir": t.TempDir()}, nil, m, nil).Speed[0]
	if !strings.HasPrefix(unmeasured, "decode: about ") || !strings.Contains(unmeasured, "; press m to measure") {
		t.Errorf("of a machine that was not measured: %s", unmeasured)
	}
	bytesOf := func(s wizard.Settings) string { return estimate(s, nil, m, cards).Speed[0] }
	if bf16, int4 := bytesOf(wizard.Settings{"precision": "bf16"}), bytesOf(wizard.Settings{"precision": "int4"}); bf16 == int4 {
		t.Errorf("four bits are as fast as 16: %s", int4)
	}

	lite := filepath.Join("..", "..", "testdata", "goldens", "deepseek_v2_lite")
	o = estimate(wizard.Settings{"model": lite, "device": "cuda", "gpu": "0", "vram": "8GiB"}, nil, m, cards)
	if o.Trouble != "" || len(o.Hidden) != 0 || len(o.Budgets) < 2 || !strings.HasPrefix(o.Speed[0], "strategies: prefill ") {
		t.Errorf("on a GPU: %+v", o)
	}
	o = estimate(wizard.Settings{"model": lite, "device": "cuda", "gpu": "0", "decode-strategy": "lru"}, nil, m, cards)
	if !strings.Contains(o.Speed[0], "decode lru") {
		t.Errorf("a strategy that was chosen: %+v", o.Speed)
	}
	for _, s := range strategyOptions()[1:] {
		o := estimate(wizard.Settings{"model": lite, "device": "cuda", "gpu": "0", "prefill-strategy": s.Value, "decode-strategy": s.Value}, nil, m, cards)
		if o.Trouble != "" {
			t.Errorf("%s: %s", s.Value, o.Trouble)
		}
	}
	o = estimate(wizard.Settings{"model": lite, "device": "cuda", "gpu": "0"}, nil, m, []setupGPU{{"A GPU of tomorrow", 24 << 30}})
	if o.Trouble != "" || !strings.Contains(o.Speed[0], "press m to measure") {
		t.Errorf("an unknown GPU: %+v", o)
	}
	o = estimate(wizard.Settings{"model": filepath.Join("..", "..", "testdata", "goldens", "qwen2"), "device": "cuda", "gpu": "0"}, nil, m, cards)
	if !slices.Contains(o.Hidden, "prefill-strategy") {
		t.Errorf("strategies without experts: %v", o.Hidden)
	}

	for name, s := range map[string]wizard.Settings{
		"does not fit": {"max-seqs": "65536", "kv-cache": "1000GiB"},
		"model":        {"model": t.TempDir()},
		"enum":         {"precision": "int5"},
	} {
		if o := estimate(s, nil, m, nil); o.Trouble == "" {
			t.Errorf("%s: no trouble: %+v", name, o)
		}
	}
}

func TestStoredSettingsAreRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "k.yaml")
	odd := filepath.Join(t.TempDir(), "a: 'model' #1")
	if err := os.Mkdir(odd, 0o755); err != nil {
		t.Fatal(err)
	}
	s := wizard.Settings{"model": odd, "max-seqs": "8", "precision": "int4", "kv-dtype": "fp8", "listen": "127.0.0.1:8000"}
	for range 2 { // the second one replaces the first
		if err := storeSettings(path, s); err != nil {
			t.Fatal(err)
		}
	}
	var c cli
	if _, _, err := cmdline.Parse(&c, []string{"serve", "--config", path}); err != nil {
		t.Fatal(err)
	}
	if f := c.Serve; f.Model != odd || f.MaxSeqs != 8 || f.Precision != "int4" || f.KVDType != "fp8" || f.Listen != "127.0.0.1:8000" {
		t.Errorf("got %+v", f)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".krater-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if storeSettings(filepath.Join(path, "none", "k.yaml"), s) == nil {
		t.Error("a file in a folder that is none")
	}
}

// TestStoredSettingsAreChosen: the wizard begins with what the file has, and what it has no field
// for stays.
func TestStoredSettingsAreChosen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "k.yaml")
	text := "# by hand\nprecision: int8\nlisten: 127.0.0.1:9000\nmodel: " + dir + "\norigins: [http://a, http://b]\nseconds: 2\ndevice: cuda\ngpu: 7\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c := setupCmd{Save: path, Folders: []string{t.TempDir()}}
	w := c.wizard(&console.Env{}, machine.Here())
	want := wizard.Settings{"precision": "int8", "listen": "127.0.0.1:9000", "model": dir}
	if got := w.Settings(); !maps.Equal(got, want) || !maps.Equal(w.Stored, want) || !w.Exists {
		t.Errorf("chosen %v, stored %v, want %v", got, w.Stored, want)
	}
	if o := w.Estimate(wizard.Settings{}); o.Trouble != "" { // --seconds is a flag of others
		t.Errorf("trouble with other commands' settings: %s", o.Trouble)
	}
	if err := w.Store(wizard.Settings{"precision": "int4"}); err != nil {
		t.Fatal(err)
	}
	file, err := cmdline.ReadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(file.Values), "map[origins:http://a,http://b precision:int4 seconds:2]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// A file of the defaults chooses the model that is built in, whatever else was found.
	if err := storeSettings(path, nil); err != nil {
		t.Fatal(err)
	}
	c.Folders = []string{filepath.Join("..", "..", "testdata", "goldens")}
	if w := c.wizard(&console.Env{}, machine.Here()); len(w.Settings()) != 0 || w.Stored == nil || !strings.Contains(w.Fields[0].Help, " models found in ") {
		t.Errorf("%v, stored %v, %s", w.Settings(), w.Stored, w.Fields[0].Help)
	}
	// What it wrote itself is replaced unasked, unless a user has edited it.
	if w := c.wizard(&console.Env{}, machine.Here()); !w.Own {
		t.Error("its own file is taken for another's")
	}
	if err := os.WriteFile(path, append(readFile(t, path), "# mine\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	if w := c.wizard(&console.Env{}, machine.Here()); w.Own {
		t.Error("an edited file is taken for its own")
	}
	for _, f := range c.wizard(&console.Env{}, machine.Here()).Fields {
		if len(f.Help) > 80 && f.Key != "model" { // which names folders
			t.Errorf("%s: %d columns of help", f.Key, len(f.Help))
		}
	}
	c.Listen = "127.0.0.1:9001"
	if w := c.wizard(&console.Env{}, machine.Here()); w.Settings()["listen"] != c.Listen {
		t.Errorf("--listen: %v", w.Settings())
	}
	c.Listen = "127.0.0.1:8080"
	if w := c.wizard(&console.Env{}, machine.Here()); w.Settings()["listen"] != "" {
		t.Errorf("--listen with the default: %v", w.Settings())
	}
	c.Listen = ""
	if err := os.WriteFile(path, []byte("- no settings"), 0o644); err != nil {
		t.Fatal(err)
	}
	if w := c.wizard(&console.Env{}, machine.Here()); w.Stored != nil || !w.Exists {
		t.Errorf("a file that holds no settings: %v", w.Stored)
	}
}

// TestMeasuredInTheWizard: what was measured is kept, and bounds the speed from then on.
func TestMeasuredInTheWizard(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "k.yaml")
	if err := os.WriteFile(path, []byte("cache-dir: "+dir+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(dir, "big")
	config, err := synth.Config("deepseek-v2-lite", 27)
	if err = errors.Join(err, os.Mkdir(big, 0o755), os.WriteFile(filepath.Join(big, "config.json"), config, 0o644)); err != nil {
		t.Fatal(err)
	}
	var told bytes.Buffer
	f := &fakeMeter{slow: 2 * measureTold, cpu: rates.CPU{Name: "Tried", Threads: 2, ReadGBps: 77, DecodeShare: 1, Experts: rates.Curve{Peak: 1}, LayerUS: 1}}
	c := setupCmd{Save: path, Folders: []string{dir}}
	w := c.wizard(&console.Env{Err: &told, Meter: f}, machine.Here())
	large := wizard.Settings{"model": big}
	if o := w.Estimate(large); !strings.HasPrefix(o.Speed[0], "decode: about ") {
		t.Errorf("before: %s", o.Speed)
	}
	var states []term.State
	if err := w.Measure(w.Settings(), func(s term.State) { states = append(states, s) }); err != nil {
		t.Fatal(err)
	}
	if n := len(states); n == 0 || states[n-1].Phase != "measure nothing" || states[n-1].Share() != 0.25 {
		t.Errorf("told %+v", states)
	}
	if o := w.Estimate(w.Settings()); !strings.HasPrefix(o.Speed[0], "decode: about ") { // its weights lie in the cache
		t.Errorf("the built-in model: %s", o.Speed)
	}
	if o := w.Estimate(large); !strings.HasPrefix(o.Speed[0], "decode: at most ") || !strings.Contains(o.Speed[0], "at 77.0 GB/s (measured on this machine)") {
		t.Errorf("after: %s", o.Speed)
	}
	if told.Len() > 0 {
		t.Errorf("the screen was written to: %s", &told)
	}
	if err := os.WriteFile(path, []byte("cache-dir: "+path+"/none\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if w := c.wizard(&console.Env{Err: &told, Meter: f}, machine.Here()); w.Measure(w.Settings(), nil) == nil {
		t.Error("what cannot be kept is not said")
	}
}

// TestWhatCanBeRunIsChosen first, rather than what was found first.
func TestWhatCanBeRunIsChosen(t *testing.T) {
	dir := t.TempDir()
	config, err := os.ReadFile(filepath.Join("..", "..", "testdata", "goldens", "qwen2", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"a": "{", "b": `{"model_type":"unheard_of"}`, "c": string(config), "d": string(config)} {
		if err := errors.Join(os.Mkdir(filepath.Join(dir, name), 0o755), os.WriteFile(filepath.Join(dir, name, "config.json"), []byte(text), 0o644), os.WriteFile(filepath.Join(dir, name, "x.safetensors"), nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	c := setupCmd{Save: filepath.Join(dir, "k.yaml"), Folders: []string{dir}}
	if w := c.wizard(&console.Env{}, machine.Here()); w.Settings()["model"] != filepath.Join(dir, "c") || len(w.Fields[0].Options) < 5 {
		t.Errorf("%v of %v", w.Settings(), w.Fields[0].Options)
	}
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	c.Folders = []string{filepath.Join(dir, "x"), filepath.Join(dir, "y")}
	if help := c.wizard(&console.Env{}, machine.Here()).Fields[0].Help; !strings.HasPrefix(help, "No model found in ") || !strings.Contains(help, c.Folders[0]+", "+c.Folders[1]) {
		t.Errorf("nothing found: %s", help)
	}
}

func TestSetupNeedsATerminal(t *testing.T) {
	if o := execute(t, "", "setup"); o.status != 1 || !strings.Contains(o.err, "needs a terminal") {
		t.Errorf("%d %s", o.status, o.err)
	}
}

// startSetup starts krater setup on a terminal.
func startSetup(t *testing.T, env []string, args ...string) *typist {
	t.Helper()
	return onScreen(t, append([]string{"HF_HUB_CACHE=" + t.TempDir()}, env...), append([]string{"setup"}, args...)...)
}

// left waits for the end, and checks that the screen of before is back.
func left(t *testing.T, l *typist) {
	t.Helper()
	l.ended(t, 0)
	s := l.String()
	for on, off := range map[string]string{"\x1b[?1049h": "\x1b[?1049l", "\x1b[?25l": "\x1b[?25h", "\x1b[?2004h": "\x1b[?2004l"} {
		if strings.LastIndex(s, off) < strings.LastIndex(s, on) {
			t.Errorf("%q is not taken back: %q", on, s)
		}
	}
}

// TestSetupOnATerminal: a choice is saved, read by krater serve, and the terminal is left as it
// was.
func TestSetupOnATerminal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "k.yaml")
	l := startSetup(t, nil, "--save", file, "../../testdata/goldens")
	l.wait(t, "of weights per token")
	l.typed(t, "\x1b[B\x1b[B\x1b[C") // down to the precision, bf16
	l.wait(t, "2/4")
	time.Sleep(300 * time.Millisecond) // it is planned
	l.typed(t, "w")
	l.wait(t, "; start with: krater serve")
	left(t, l)
	if strings.Contains(l.String(), "panic") {
		t.Errorf("got %q", l.String())
	}
	var c cli
	if _, _, err := cmdline.Parse(&c, []string{"serve", "--config", file}); err != nil || c.Serve.Precision != "bf16" || filepath.Base(c.Serve.Model) != "deepseek_v2" {
		t.Errorf("%v: got %+v", err, c.Serve)
	}
}

// TestSetupStartsTheServer, and a signal to it ends it as ever.
func TestSetupStartsTheServer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "k.yaml")
	l := startSetup(t, []string{"KRATER_LISTEN=127.0.0.1:0", "NO_COLOR=1"}, "--save", file, t.TempDir())
	l.wait(t, "of weights per token")
	if s := l.String(); strings.Contains(s, "\x1b[36m") || strings.Contains(s, "\x1b[1m") {
		t.Errorf("colours with NO_COLOR: %q", s)
	}
	l.typed(t, "s")
	l.wait(t, "curl")
	if err := l.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	left(t, l)
}

// TestSetupStartsWithoutSaving, with what the file has besides.
func TestSetupStartsWithoutSaving(t *testing.T) {
	file := write(t, "k.yaml", "# mine\nmax-seqs: 4\nmax-concurrent: 7\nrounds: 3\n")
	l := startSetup(t, []string{"NO_COLOR=1"}, "--save", file, "--listen", "127.0.0.1:0", t.TempDir())
	l.wait(t, "of weights per token")
	l.typed(t, "t")
	l.wait(t, "krater serve --listen=127.0.0.1:0 --max-concurrent=7 --max-seqs=4\r\n")
	l.wait(t, "curl")
	if err := l.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	left(t, l)
	if got := string(readFile(t, file)); !strings.HasPrefix(got, "# mine\n") {
		t.Errorf("the file was written: %s", got)
	}
}

// TestSetupIsLeft: by a key, and by an interrupt.
func TestSetupIsLeft(t *testing.T) {
	for _, keys := range []string{"q", "\x03", "\x1b[F\x1b[D\r"} {
		file := filepath.Join(t.TempDir(), "k.yaml")
		l := startSetup(t, nil, "--save", file, t.TempDir())
		l.wait(t, "of weights per token")
		l.typed(t, keys)
		left(t, l)
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%q: something was saved", keys)
		}
	}
}
