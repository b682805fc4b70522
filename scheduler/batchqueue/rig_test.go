package batchqueue

import (
	"bytes"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	endpoint = "/v1/chat/completions"
	served   = "test-model"
)

// clock is a time that tests move.
type clock struct{ at time.Time }

func newClock() *clock { return &clock{time.Unix(1_800_000_000, 0)} }

func (c *clock) now() time.Time { return c.at }

// openStore opens a store that is closed at the end of the test.
func openStore(t testing.TB, dir string, opt Options) *Store {
	t.Helper()
	s, err := Open(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// request is a line that can be run.
func request(id string) string {
	return fmt.Sprintf(`{"custom_id":%q,"method":"POST","url":%q,"body":{"model":%q,"messages":[]}}`, id, endpoint, served)
}

func requests(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(request(fmt.Sprintf("line-%d", i)))
		b.WriteByte('\n')
	}
	return b.String()
}

func upload(t testing.TB, s *Store, owner, text string) File {
	t.Helper()
	u, err := s.Upload(owner)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(u, text); err != nil {
		t.Fatal(err)
	}
	f, err := u.Commit("in.jsonl", PurposeInput)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func order(f File) Order {
	return Order{Owner: f.Owner, Model: served, Endpoint: endpoint, Input: f.ID, Window: "24h", Within: 24 * time.Hour}
}

// begin makes a batch of a text and validates it.
func begin(t testing.TB, s *Store, text string) Batch {
	t.Helper()
	b, err := s.Create(order(upload(t, s, "", text)))
	if err == nil {
		b, err = s.Validate(t.Context(), b.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// openLines lists the open lines of a batch.
func openLines(t testing.TB, s *Store, b *Batch) (indices []int, ids []string) {
	t.Helper()
	lines, err := s.Lines(b)
	if err != nil {
		t.Fatal(err)
	}
	defer lines.Close()
	for {
		i, line, fault, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return indices, ids
		}
		if err != nil || fault != nil {
			t.Fatal(err, fault)
		}
		indices, ids = append(indices, i), append(ids, line.CustomID)
	}
}

// answer is the end of a line, told apart by its words.
func answer(t testing.TB, batch string, index int, id, words string, status int) Settled {
	t.Helper()
	body, err := json.Marshal(map[string]string{"said": words})
	if err != nil {
		t.Fatal(err)
	}
	end, err := Answered(batch, index, id, Response{StatusCode: status, RequestID: "r", Body: body})
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// content reads a file of the store.
func content(t testing.TB, s *Store, owner, id string) string {
	t.Helper()
	r, f, err := s.Content(owner, id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(data)) != f.Bytes {
		t.Errorf("%s has %d bytes, its record says %d", id, len(data), f.Bytes)
	}
	return string(data)
}

// outputs reads the lines of an output or error file ("": none).
func outputs(t testing.TB, s *Store, owner, id string) (list []Output) {
	t.Helper()
	if id == "" {
		return nil
	}
	for line := range strings.Lines(content(t, s, owner, id)) {
		var o Output
		if err := json.Unmarshal([]byte(line), &o, json.RejectUnknownMembers(true)); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		list = append(list, o)
	}
	return list
}

// copyStore copies a folder as a crash would leave it.
func copyStore(t testing.TB, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

func contentNames(t testing.TB, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, contentsName))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.TrimSpace(data))
}
