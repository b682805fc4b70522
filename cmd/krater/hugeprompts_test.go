package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"
)

// heapPeak runs f and gives by how many bytes the heap grew meanwhile, at most.
func heapPeak(f func()) uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	read := func() uint64 {
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	runtime.GC()
	debug.FreeOSMemory()
	before, peak := read(), uint64(0)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			peak = max(peak, read())
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	f()
	close(stop)
	<-stopped
	return peak - min(before, peak)
}

// hugeMost is twice the memory that docs/operations.md gives for requests in work: the second half is
// garbage that is not collected yet.
const hugeMost = 2 * 400 << 20

// usualCollector lets the server of a test choose how much garbage it keeps.
func usualCollector(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
}

// TestHugePrompts: many prompts far over the context, at once, are refused with the true reason, and
// take no more memory than a few of them.
func TestHugePrompts(t *testing.T) {
	usualCollector(t)
	s := open(t)
	text := strings.Repeat("a", 5<<20)
	for _, c := range []struct {
		path, body, want string
		clients          int
	}{
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"%s"}]}`, "the prompt has at least ", 40},
		{"/v1/completions", `{"prompt":["a","%s"]}`, "the prompt has at least ", 4},
		{"/v1/responses", `{"input":"%s"}`, "the prompt has at least ", 4},
		{"/tokenize", `{"messages":[{"role":"user","content":"%s"}]}`, "the text has at least ", 4},
		{"/tokenize", `{"prompt":"%s"}`, "the text has at least ", 16},
	} {
		body := fmt.Sprintf(c.body, text)
		if testing.Short() {
			c.clients = (c.clients + 2) / 3
		}
		peak := heapPeak(func() {
			var all sync.WaitGroup
			for range c.clients {
				all.Go(func() {
					if status, _, answer := s.do("POST", c.path, body); status != 400 || !strings.Contains(answer, "context_length_exceeded") || !strings.Contains(answer, c.want) {
						t.Errorf("%s: %d %.300s", c.path, status, answer)
					}
				})
			}
			all.Wait()
		})
		t.Logf("%s: %d MiB", c.path, peak>>20)
		if peak > hugeMost {
			t.Errorf("%s: the heap grew by %d MiB", c.path, peak>>20)
		}
	}
}

// TestHugePromptsOfClientsThatLeave: what a client asked for that has left is no longer worked on,
// and its share of the memory is free again.
func TestHugePromptsOfClientsThatLeave(t *testing.T) {
	usualCollector(t)
	s := open(t)
	body := fmt.Sprintf(`{"prompt":"%s"}`, strings.Repeat("a", 5<<20))
	peak := heapPeak(func() {
		var all sync.WaitGroup
		for range 40 {
			all.Go(func() {
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				// It leaves when all is sent.
				req, err := http.NewRequestWithContext(ctx, "POST", s.base+"/tokenize", io.MultiReader(strings.NewReader(body), leaver(leave)))
				if err != nil {
					t.Error(err)
					return
				}
				req.ContentLength = int64(len(body))
				s.dress(req)
				if res, err := s.http.Do(req); err == nil {
					res.Body.Close()
				}
			})
		}
		all.Wait()
	})
	if peak > hugeMost {
		t.Errorf("the heap grew by %d MiB", peak>>20)
	}
	if status, _, answer := s.do("POST", "/tokenize", body); status != 400 {
		t.Errorf("the next one: %d %.300s", status, answer)
	}
}

// leaver is a reader that is at its end, and calls f when that is noticed.
type leaver func()

func (f leaver) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}
