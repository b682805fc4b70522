package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestCutFiles: a file of weights is cut while a server uses it. Requests fail with the file's
// name, /health and /ready tell it, and the process goes on until it is stopped.
func TestCutFiles(t *testing.T) {
	const question = `{"messages":[{"role":"user","content":"What is a lighthouse?"}],"max_tokens":4}`
	for name, x := range map[string]struct {
		flags []string
		cut   string // pattern of the files, below the test's folder
	}{
		"a shard":            {nil, "model/model-00002-of-00003.safetensors"},
		"experts as INT8":    {[]string{"--precision", "int8"}, "cache/*/experts_cpu_*.bin"},
		"matrices as INT8":   {[]string{"--precision", "int8"}, "cache/*/dense_*.bin"},
		"beside hostsim":     {[]string{"--device", "hostsim", "--prefill-strategy", "cpu_only", "--decode-strategy", "cpu_only"}, "model/model-*.safetensors"},
		"pools of two nodes": {[]string{"--fake-topology", "1x1,1x1", "--inline-below", "0s"}, "model/model-00002-of-00003.safetensors"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			model := filepath.Join(dir, "model")
			if err := os.CopyFS(model, os.DirFS(modelDir)); err != nil {
				t.Fatal(err)
			}
			flags := append(x.flags, "--cache-load", "map", "--cache-dir", filepath.Join(dir, "cache"), "--model", model)
			if strings.HasPrefix(x.cut, "cache") {
				answers(t, "", "run", "--cache-load", "map", "--precision", "int8", "--cache-dir", filepath.Join(dir, "cache"), "--model", model, "--max-tokens", "1", "hi")
			}
			p := launch(t, append([]string{"serve", "--listen", "127.0.0.1:0", "--batch-dir", "off"}, flags...)...)
			s := p.outside()
			s.waitReady()
			if status, _, text := s.do("POST", "/v1/chat/completions", question); status != 200 {
				t.Fatalf("%d %s", status, text)
			}
			files, err := filepath.Glob(filepath.Join(dir, x.cut))
			if err != nil || len(files) == 0 {
				t.Fatalf("no %s: %v", x.cut, err)
			}
			for _, f := range files {
				if err := os.Truncate(f, 4096); err != nil {
					t.Fatal(err)
				}
			}
			for _, r := range []struct{ method, path, body string }{
				{"POST", "/v1/chat/completions", question}, {"POST", "/v1/chat/completions", question}, {"GET", "/health", ""}, {"GET", "/ready", ""},
			} {
				status, _, text := s.do(r.method, r.path, r.body)
				if status != 503 || !strings.Contains(text, "weights are lost") || !strings.Contains(text, filepath.Ext(files[0])) || strings.Contains(text, dir) {
					t.Errorf("%s: %d %s", r.path, status, text)
				}
			}
			if status, _, text := s.do("GET", "/version", ""); status != 200 {
				t.Errorf("/version: %d %s", status, text)
			}
			p.signal(syscall.SIGTERM)
			if status := p.wait(); status != 1 || strings.Contains(p.err.String(), "fatal error") {
				t.Errorf("status %d\n%s", status, p.err)
			}
		})
	}
}
