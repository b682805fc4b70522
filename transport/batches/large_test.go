//go:build !race

package batches

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/transport/api"
	"krater/transport/enginetest"
)

// plainEngine answers at once and, unlike the scripted one, remembers nothing.
type plainEngine struct {
	engine.Engine
	asked atomic.Int64
}

// Submit implements engine.Engine.
func (e *plainEngine) Submit(context.Context, *engine.Request) (engine.Stream, error) {
	e.asked.Add(1)
	return &plainStream{text: strings.Repeat("answer ", 100)}, nil
}

type plainStream struct {
	text string
	over bool
}

// Next implements engine.Stream.
func (s *plainStream) Next(context.Context) (engine.Event, error) {
	if s.over {
		return engine.Event{}, io.EOF
	}
	s.over = true
	return engine.Event{Kind: engine.Done, Text: s.text, Finish: engine.FinishStop}, nil
}

// Close implements engine.Stream.
func (s *plainStream) Close() {}

// PromptTokens implements engine.Stream.
func (s *plainStream) PromptTokens() int { return 1 }

// pattern yields a large file without holding it.
func pattern(n int, line func(i int) string) io.Reader {
	r, w := io.Pipe()
	go func() {
		out := bufio.NewWriter(w)
		for i := range n {
			_, _ = out.WriteString(line(i))
		}
		w.CloseWithError(out.Flush())
	}()
	return r
}

// peak watches the heap until its result is called, which gives the largest size seen.
func peak() (end func() uint64) {
	var most atomic.Uint64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most.Store(max(most.Load(), m.HeapAlloc))
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return func() uint64 {
		close(stop)
		<-done
		return most.Load()
	}
}

// TestLarge: a batch of as many lines as there may be, in a file of nearly 200 MB, runs in memory
// that does not grow with it, and in few commits.
func TestLarge(t *testing.T) {
	lines, filler := 50_000, 3600
	if testing.Short() {
		lines = 5000
	}
	defer debug.SetGCPercent(debug.SetGCPercent(50))
	plain := &plainEngine{Engine: enginetest.New()}
	commits := 0
	dir := t.TempDir()
	r := start(t, setup{dir: dir, over: plain, door: Options{InFlight: 16, CommitDelay: 50 * time.Millisecond, Poll: 100 * time.Millisecond}})
	runtime.GC()
	top := peak()
	began := time.Now()
	content := pattern(lines, func(i int) string {
		return line(fmt.Sprintf("line-%d", i), chatPath, chat(fmt.Sprintf("%d %s", i, strings.Repeat("x", filler))))
	})
	f, err := r.Upload(r.ctx(), "large.jsonl", content)
	if err != nil {
		t.Fatal(err)
	}
	uploaded := time.Since(began)
	path, window := chatPath, "24h"
	b, err := r.CreateBatch(r.ctx(), api.BatchRequest{InputFileID: &f.ID, Endpoint: &path, Window: &window})
	if err != nil {
		t.Fatal(err)
	}
	last := -1
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	b, err = r.WaitBatch(ctx, b.ID, 5*time.Millisecond, func(b *api.Batch) {
		if n := b.RequestCounts.Completed; n != last {
			last = n
			commits++
		}
	})
	if err != nil || b.RequestCounts != (api.BatchCounts{Total: lines, Completed: lines}) {
		t.Fatalf("%v, %+v", err, b)
	}
	took := time.Since(began)
	body, err := r.Content(r.ctx(), *b.OutputFileID)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	checkLines(t, body, lines)
	heap := top()
	info, err := os.Stat(dir + "/queue.db")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d lines, %d MB: uploaded in %v, all in %v, %.0f lines/s, at least %d commits seen, heap at most %d MiB, database %d MiB",
		lines, f.Bytes/1e6, uploaded.Round(time.Millisecond), took.Round(time.Millisecond), float64(lines)/took.Seconds(), commits, heap>>20, info.Size()>>20)
	if heap > 32<<20 {
		t.Errorf("the heap grew to %d MiB", heap>>20)
	}
	if n := plain.asked.Load(); n != int64(lines) {
		t.Errorf("the engine was asked %d times", n)
	}
	if info.Size() > 64<<20 {
		t.Errorf("the database has %d MiB", info.Size()>>20)
	}
}

// checkLines expects n answers in the order of the lines, and nothing else.
func checkLines(t *testing.T, body io.Reader, n int) {
	t.Helper()
	in := bufio.NewReader(body)
	for i := range n {
		text, err := in.ReadString('\n')
		if err != nil || !strings.Contains(text, fmt.Sprintf(`"custom_id":"line-%d"`, i)) {
			t.Fatalf("line %d: %v, %.120s", i, err, text)
		}
	}
	if _, err := in.ReadByte(); err != io.EOF {
		t.Errorf("there is more: %v", err)
	}
}
