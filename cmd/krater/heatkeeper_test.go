package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"krater/scheduler/heat"
	"krater/stages/source"
)

// rows returns the number of rows that the layers of a server have computed: every token of prompts
// and answers except the last of each answer.
func (s *site) rows(requests int) uint64 {
	m := s.metrics()
	return uint64(m["krater:prompt_tokens_total"]+m["krater:generation_tokens_total"]) - uint64(requests)
}

// TestServeHeat: a server saves what it counts now and then and at its end, the next
// one goes on from there, and the file is one that krater heatmap reads.
func TestServeHeat(t *testing.T) {
	path := filepath.Join(t.TempDir(), "served.heat")
	var total uint64
	for run := range 2 {
		s := open(t, "--heat-file", path, "--heat-sample", "1", "--heat-save-every", "20ms")
		var rows uint64
		for i := range 3 {
			s.reply(t, routes[2], greedy("A lighthouse is", 6).with("ignore_eos", true))
			rows = s.rows(i + 1)
			s.poll(patience, func() error {
				m, err := heat.Load(path)
				if err != nil {
					return err
				}
				if m.Seen() != total+rows {
					return fmt.Errorf("run %d: %d tokens in the file, want %d", run, m.Seen(), total+rows)
				}
				return nil
			})
		}
		if rows < 3*6 {
			t.Fatalf("only %d rows", rows)
		}
		total += rows
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, "--heat-file", path, "--heat-sample", "1") // saves at its end only
	s.reply(t, routes[2], greedy("A river is", 6).with("ignore_eos", true))
	total += s.rows(1)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	m := decode[heatJSON](t, answers(t, "", "heatmap", "--load", path, "--json"))
	for _, l := range m.Layers {
		var sum uint64
		for _, n := range l.Counts {
			sum += n
		}
		if l.Tokens != total || sum != 4*total {
			t.Errorf("layer %d: %d rows of %d tokens, want %d tokens", l.Layer, sum, l.Tokens, total)
		}
	}
	// Nothing is counted with 0, nor changed.
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s = open(t, "--heat-file", path, "--heat-sample", "0", "--heat-save-every", "1ms")
	s.reply(t, routes[2], greedy("A river is", 6))
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("%v: the file has changed", err)
	}
}

// TestServeHeatFiles: a damaged file is put aside, one of another model or that is no
// map at all keeps the server from starting and stays as it is.
func TestServeHeatFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "damaged.heat")
	src, err := source.Open("")
	if err != nil {
		t.Fatal(err)
	}
	cfg, _, err := src.Config()
	if err != nil {
		t.Fatal(err)
	}
	m, err := src.NewHeat(cfg)
	if err == nil {
		err = m.Save(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, "--heat-file", path)
	s.log.wait(t, "the heat map is damaged; starting a new one", s.done)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if kept, err := os.ReadFile(path + ".damaged"); err != nil || string(kept) != string(data) {
		t.Errorf("the damaged file is not kept: %v", err)
	}
	if _, err := heat.Load(path); err != nil {
		t.Error(err)
	}
	other := m.Clone()
	other.Identity[0]++
	if err := other.Save(path); err != nil {
		t.Fatal(err)
	}
	text := write(t, "text", strings.Repeat("not a heat map ", 10))
	for words, file := range map[string]string{"another model": path, "not a heat map": text, "no such file": filepath.Join(path+".not", "x")} {
		before, _ := os.ReadFile(file)
		refuses(t, 1, []string{"serve", "--listen", "127.0.0.1:0", "--log-level", "error", "--heat-file", file}, words)
		if after, _ := os.ReadFile(file); string(after) != string(before) {
			t.Errorf("%s has changed", file)
		}
	}
	dense := copyDir(t, "../../testdata/goldens/qwen2", nil)
	writeIn(t, dense, "tokenizer.json", string(source.MadeTokenizer(512)))
	refuses(t, 1, []string{"serve", "--listen", "127.0.0.1:0", "--log-level", "error", "--model", dense, "--heat-file", path}, "routed experts")
	refuses(t, 1, []string{"serve", "--heat-sample=-1"}, "--heat-sample")
	if f := (heatFlags{HeatFile: t.TempDir() + "/none"}); f.counted() != nil {
		t.Error("counts of no file")
	}
	refuses(t, 1, []string{"serve", "--heat-save-every", "0s"}, "--heat-save-every")
}

// TestServeHeatKilled: what a server had saved is there when it is killed.
func TestServeHeatKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "killed.heat")
	p := launch(t, "serve", "--listen", "127.0.0.1:0", "--heat-file", path, "--heat-sample", "1", "--heat-save-every", "10ms")
	s := p.outside()
	s.reply(t, routes[2], greedy("A lighthouse is", 6).with("ignore_eos", true))
	s.poll(patience, func() error {
		m, err := heat.Load(path)
		if err == nil && m.Seen() < s.rows(1) {
			err = fmt.Errorf("%d tokens of %d", m.Seen(), s.rows(1))
		}
		return err
	})
	p.signal(syscall.SIGKILL)
	p.wait()
	if m, err := heat.Load(path); err != nil || m.Seen() == 0 {
		t.Errorf("%v", err)
	}
}
