package main

import (
	"encoding/json/v2"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krater/transport/api"
)

// batchFile is a file of n lines that can be run.
func batchFile(t testing.TB, n int) string {
	t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"custom_id":"line-%d","method":"POST","url":"/v1/chat/completions","body":{"temperature":0,"max_tokens":3,"messages":[{"role":"user","content":"Number %d?"}]}}`+"\n", i, i)
	}
	return write(t, "lines.jsonl", b.String())
}

// TestBatchCommands: a batch from the file to the answers, on the command line.
func TestBatchCommands(t *testing.T) {
	s := open(t, "--batch-dir", t.TempDir())
	at := "--url=" + s.base
	if out := answers(t, "", "batch", "status", at); out != "no batches\n" {
		t.Errorf("%q", out)
	}
	o := krater(t, "", "batch", "submit", batchFile(t, 10), at, "--wait", "--json")
	b := decode[api.Batch](t, o.out)
	if o.status != 0 || b.Status != "completed" || b.Window != "24h" || b.RequestCounts != (api.BatchCounts{Total: 10, Completed: 10}) || !strings.HasPrefix(o.err, b.ID+"\n") {
		t.Fatalf("%+v", o)
	}
	text := answers(t, "", "batch", "fetch", b.ID, at)
	if strings.Count(text, "\n") != 10 || !strings.HasPrefix(text, `{"id":"batch_req_`) || !strings.Contains(text, `"custom_id":"line-9","response":{"status_code":200`) {
		t.Errorf("%s", text)
	}
	path := filepath.Join(t.TempDir(), "answers.jsonl")
	if o := krater(t, "", "batch", "fetch", b.ID, at, "-o", path); o.status != 0 || o.out != "" || !strings.Contains(o.err, path) {
		t.Errorf("%+v", o)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != text {
		t.Errorf("%v: %s", err, data)
	}
	if out := answers(t, "", "batch", "status", at); !strings.HasPrefix(out, "ID ") || !strings.Contains(out, b.ID+"  completed  10     10        0") {
		t.Errorf("%s", out)
	}
	if out := answers(t, "", "batch", "status", b.ID, at); !strings.Contains(out, "completed: 10 of 10 lines, 0 failed") || !strings.Contains(out, "krater batch fetch "+b.ID) {
		t.Errorf("%s", out)
	}
	refuses(t, 1, []string{"batch", "fetch", b.ID, at, "--errors"}, b.ID, "no failed lines")
	refuses(t, 1, []string{"batch", "cancel", b.ID, at}, "completed")
	refuses(t, 1, []string{"batch", "status", "batch_1", at}, "batch_1")
	refuses(t, 1, []string{"batch", "submit", batchFile(t, 1), at, "--endpoint", "/v1/embeddings"}, "endpoint", "/v1/chat/completions")
	refuses(t, 1, []string{"batch", "submit", write(t, "x", "hello\n"), at}, "--endpoint")
	o = krater(t, "", "batch", "submit", write(t, "x", "hello\n"), at, "--endpoint", "/v1/completions", "--window", "90s", "--wait")
	if o.status != 1 || !strings.Contains(o.out, "line 1: the line is not valid JSON (invalid_json_line)") {
		t.Errorf("%+v", o)
	}
	o = krater(t, "", "batch", "submit", batchFile(t, 1), at)
	if id := strings.TrimSpace(o.out); o.status != 0 || !strings.HasPrefix(id, "batch_") || !strings.Contains(o.err, "krater batch status "+id) {
		t.Errorf("%+v", o)
	}
	if m := s.metrics(); m[`krater:batches{status="failed"}`] != 1 {
		t.Errorf("%v", m)
	}
}

// TestBatchRemote: faults of the way to the server are told in a line.
func TestBatchRemote(t *testing.T) {
	keys := write(t, "keys", "secret-key\n")
	s := open(t, "--batch-dir", t.TempDir(), "--api-keys", keys)
	at := "--url=" + s.base
	refuses(t, 1, []string{"batch", "status", at}, s.base, "API key", "KRATER_API_KEY")
	refuses(t, 1, []string{"batch", "status", at, "--api-key", "wrong-key"}, "API key")
	if out := answers(t, "", "batch", "status", at, "--api-key", "secret-key"); out != "no batches\n" {
		t.Errorf("%q", out)
	}
	t.Setenv("KRATER_API_KEY", "secret-key")
	if out := answers(t, "", "batch", "status", at, "--json"); !strings.Contains(out, `"data":[]`) {
		t.Errorf("%q", out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := "http://" + l.Addr().String()
	l.Close()
	refuses(t, 1, []string{"batch", "status", "--url", address}, address, "does not answer", "refused", "krater serve")
	refuses(t, 1, []string{"trace", "record", "--url", address, "--out", filepath.Join(t.TempDir(), "x")}, address, "does not answer")
	refuses(t, 1, []string{"bench", "serve", "--url", address}, address, "does not answer")
	refuses(t, 1, []string{"batch", "status", "--url", "localhost"}, "--url", "http://")
	refuses(t, 2, []string{"batch", "submit", "/no/such/file"}, "/no/such/file")
}

// TestBatchDir: where the queue is, that it can be off, and what becomes of a folder
// that cannot be used.
func TestBatchDir(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	first := open(t)
	if _, err := os.Stat(filepath.Join(state, "krater", "batches-krater-tiny", "queue.db")); err != nil {
		t.Error(err)
	}
	second := open(t) // the same folder: it does without
	status, _, text := second.do("GET", "/v1/batches", "")
	if status != 400 || !strings.Contains(text, "another process uses this batch store") || strings.Contains(text, state) {
		t.Errorf("%d %s", status, text)
	}
	// Who starts it learns which process has the folder, and how to choose another one.
	holder := fmt.Sprintf("(process %d)", os.Getpid())
	if log := second.log.String(); !strings.Contains(log, "--batch-dir DIR") || !strings.Contains(log, "batches-krater-tiny: ") || !strings.Contains(log, holder) {
		t.Errorf("%s", log)
	}
	refuses(t, 1, []string{"serve", "--listen", "127.0.0.1:0", "--batch-dir", filepath.Join(state, "krater", "batches-krater-tiny")}, "another process uses this batch store", holder)
	if status, _, text := first.do("GET", "/v1/batches", ""); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	off := open(t, "--batch-dir", "off")
	refuses(t, 1, []string{"batch", "status", "--url", off.base}, "no Batch API")

	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "queue.db"), []byte(strings.Repeat("not ours ", 4000)), 0o600); err != nil {
		t.Fatal(err)
	}
	refuses(t, 1, []string{"serve", "--listen", "127.0.0.1:0", "--batch-dir", dir}, "--batch-dir", dir, "not a batch store")
	// Files without their database are not thrown away: not asked for, the server does without.
	lost := filepath.Join(t.TempDir(), "krater", "batches-krater-tiny")
	kept := filepath.Join(lost, "files", "file-00000001aaaaaaaaaaaaaaaaaaaaaaaa")
	if err := os.MkdirAll(filepath.Dir(kept), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(kept, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	refuses(t, 1, []string{"serve", "--listen", "127.0.0.1:0", "--batch-dir", lost}, "--batch-dir", lost, "queue.db is missing or empty", "put queue.db back", "--batch-dir off")
	t.Setenv("XDG_STATE_HOME", filepath.Dir(filepath.Dir(lost)))
	third := open(t)
	if status, _, text := third.do("GET", "/v1/batches", ""); status != 400 || !strings.Contains(text, "a part of the batch store is missing") {
		t.Errorf("%d %s", status, text)
	}
	if log := third.log.String(); !strings.Contains(log, "queue.db is missing or empty") {
		t.Errorf("%s", log)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}

	refuses(t, 1, []string{"serve", "--batch-in-flight=-1"}, "--batch-in-flight")
	refuses(t, 1, []string{"serve", "--batch-keep", "1ms"}, "--batch-keep")
	refuses(t, 1, []string{"serve", "--batch-store", "0"}, "--batch-store")
}

// TestBatchBehind: people are served before the lines of a batch, and a stop gives lines
// back that the next start answers.
func TestBatchBehind(t *testing.T) {
	dir := t.TempDir()
	flags := []string{"--batch-dir", dir, "--max-seqs", "2", "--batch-in-flight", "8", "--drain-timeout", "5s"}
	s := open(t, flags...)
	var b strings.Builder
	for i := range 24 {
		fmt.Fprintf(&b, `{"custom_id":"%d","method":"POST","url":"/v1/completions","body":{"prompt":"The river","temperature":0,"ignore_eos":true,"max_tokens":100}}`+"\n", i)
	}
	file := write(t, "lines.jsonl", b.String())
	id := strings.TrimSpace(answers(t, "", "batch", "submit", file, "--url", s.base))
	status := func() api.Batch {
		var b api.Batch
		if err := json.Unmarshal([]byte(answers(t, "", "batch", "status", id, "--json", "--url", s.base)), &b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	s.poll(patience, func() error {
		if m := s.metrics(); m["krater:num_requests_waiting"] < 2 {
			return fmt.Errorf("%v requests wait", m["krater:num_requests_waiting"])
		}
		return nil
	})
	before := status().RequestCounts.Completed
	s.reply(t, routes[0], greedy(lighthouse, 5))
	if after := status().RequestCounts.Completed; after-before > 6 {
		t.Errorf("%d lines went before a person's request", after-before)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s = open(t, flags...)
	s.poll(patience, func() error {
		if b := status(); b.Status != "completed" || b.RequestCounts.Completed != 24 {
			return fmt.Errorf("%+v", b)
		}
		return nil
	})
}
