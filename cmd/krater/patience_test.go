package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long the tests wait for something to happen: far over what a loaded machine
// needs.
const patience = 60 * time.Second

// patient is a context for a wait that ends when the server has, or makes no progress: no step, no
// token, no line of its log. What counts is the time that this process has had on the
// processor, of which it gets little on a loaded machine; one that asks for none is stuck, too.
func (s *site) patient() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		look := time.NewTicker(patience / 20)
		defer look.Stop()
		w := newWatch(s.progress(), time.Now(), processTime())
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.done:
				cancel(fmt.Errorf("the server has ended: %v", s.err))
				return
			case <-look.C:
			}
			if w.stuck(s.progress(), time.Now(), processTime()) {
				cancel(fmt.Errorf("no progress for %v", time.Since(w.since).Round(time.Second)))
				return
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-ended // it reads what the test may change next
	}
}

// watch tells a server that is slow from one that is stuck.
type watch struct {
	progress string
	since    time.Time
	used     time.Duration // by this process until then
}

func newWatch(progress string, now time.Time, used time.Duration) *watch {
	return &watch{progress, now, used}
}

// idleShare: a process is idle if it uses less than 1/idleShare of a processor.
const idleShare = 50

func (w *watch) stuck(progress string, now time.Time, used time.Duration) bool {
	if progress != w.progress {
		w.progress, w.since, w.used = progress, now, used
		return false
	}
	waited, worked := now.Sub(w.since), used-w.used
	return worked > patience || waited > patience && worked < waited/idleShare
}

// progress changes whenever the server gets on with something.
func (s *site) progress() string {
	var b strings.Builder
	fmt.Fprint(&b, s.log.written.Load())
	ctx, cancel := context.WithTimeout(context.Background(), patience/10)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", s.base+"/metrics", nil)
	if err != nil {
		return b.String()
	}
	s.dress(req)
	res, err := s.http.Do(req)
	if err != nil {
		return b.String() // it has not begun, or has ended
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body) // a part of it is as good
	for line := range strings.Lines(string(text)) {
		for _, name := range []string{"krater:prompt_tokens_total", "krater:generation_tokens_total", "krater:iteration_tokens_total"} {
			if strings.HasPrefix(line, name) {
				b.WriteString(line)
			}
		}
	}
	return b.String()
}

// processTime is the time that this process has had on all processors.
func processTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestWatch: who waits gives up when the process has worked for long without progress, or
// is idle; not when it has hardly been on a processor.
func TestWatch(t *testing.T) {
	start := time.Now()
	for name, x := range map[string]struct {
		progress     string
		waited, used time.Duration
		stuck        bool
	}{
		"at once":             {"1", 0, 0, false},
		"idle for a while":    {"1", patience - 1, 0, false},
		"idle":                {"1", patience + 1, 0, true},
		"on a loaded machine": {"1", 10 * patience, patience, false},
		"busy with nothing":   {"1", patience, patience + 1, true},
		"it gets on":          {"2", 10 * patience, 10 * patience, false},
	} {
		w := newWatch("1", start, time.Hour)
		if got := w.stuck(x.progress, start.Add(x.waited), time.Hour+x.used); got != x.stuck {
			t.Errorf("%s: stuck %v", name, got)
		}
		if x.progress != "1" && w.stuck(x.progress, start.Add(x.waited+patience-1), time.Hour+x.used) {
			t.Errorf("%s: it does not count anew", name)
		}
	}
}
