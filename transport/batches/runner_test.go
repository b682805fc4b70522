package batches

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/scheduler/batchqueue"
	"krater/transport/api"
	"krater/transport/enginetest"
)

var hello = enginetest.Text("Hello", " world", "!")

// gated answers once the gate is closed.
func gated(gate <-chan struct{}) enginetest.Script { return enginetest.Gated(hello, 2, gate) }

// TestTurnedAway: a server that is busy, stopping or failing now and then has not answered; each
// line is tried again, and its own faults are kept.
func TestTurnedAway(t *testing.T) {
	r := start(t, setup{door: Options{InFlight: 4}})
	var asked atomic.Int64
	r.engine.Choose(func(q *engine.Request) (enginetest.Script, error) {
		switch n := asked.Add(1); n % 4 {
		case 0:
			return nil, &engine.Error{Kind: engine.Overloaded, Message: "busy"}
		case 1:
			return nil, &engine.Error{Kind: engine.Unavailable, Message: "away"}
		case 2:
			if n < 100 {
				return enginetest.Fail(&engine.Error{Kind: engine.Cancelled, Message: "cut"}, "Hel"), nil
			}
		}
		return echo(q)
	})
	b := r.finish(r.submit(chats(50), chatPath, "24h"))
	if b.RequestCounts != (api.BatchCounts{Total: 50, Completed: 50}) {
		t.Fatalf("%+v", b)
	}
	for i, o := range r.lines(b.OutputFileID) {
		if got := said(t, o); got != fmt.Sprintf("re: question %d", i) {
			t.Errorf("line %d is answered with %q", i, got)
		}
	}
}

// TestFailing: a line whose answer is a failure each time has that answer in the end.
func TestFailing(t *testing.T) {
	r := start(t, setup{})
	for kind, status := range map[engine.Kind]int{engine.Internal: 500, engine.Timeout: 408} {
		var asked atomic.Int64
		r.engine.Choose(func(*engine.Request) (enginetest.Script, error) {
			asked.Add(1)
			return enginetest.Fail(&engine.Error{Kind: kind, Message: "no"}), nil
		})
		b := r.finish(r.submit(chats(1), chatPath, "24h"))
		list := r.lines(b.ErrorFileID)
		if b.Status != "completed" || len(list) != 1 || list[0].Response == nil || list[0].Response.StatusCode != status || asked.Load() != attemptsMax {
			t.Errorf("after %d attempts: %+v", asked.Load(), list)
		}
	}
}

// TestInFlight: no more lines than allowed are in flight, and they begin in order.
func TestInFlight(t *testing.T) {
	r := start(t, setup{door: Options{InFlight: 3}})
	gate := make(chan struct{})
	r.engine.Play(gated(gate))
	b := r.submit(chats(10), chatPath, "24h")
	if err := r.engine.WaitOpen(r.ctx(), 3); err != nil {
		t.Fatal(err)
	}
	<-time.After(30 * time.Millisecond)
	if n := len(r.engine.Requests()); n != 3 {
		t.Errorf("%d lines are in flight", n)
	}
	close(gate)
	if b = r.finish(b); b.RequestCounts.Completed != 10 {
		t.Errorf("%+v", b)
	}
}

// TestUrgentFirst: of several batches the one whose time ends first goes on.
func TestUrgentFirst(t *testing.T) {
	r := start(t, setup{door: Options{InFlight: 1}})
	gate := make(chan struct{})
	r.engine.Play(gated(gate))
	slow := r.submit(chats(3), chatPath, "24h")
	if err := r.engine.WaitOpen(r.ctx(), 1); err != nil {
		t.Fatal(err)
	}
	urgent := r.submit(strings.ReplaceAll(chats(3), "question", "urgent"), chatPath, "1h")
	r.until(urgent, func(b *api.Batch) bool { return r.door.runner.running(b.ID) })
	close(gate)
	r.finish(urgent)
	r.finish(slow)
	var order []string
	for _, q := range r.engine.Requests() {
		text, err := r.engine.Render(t.Context(), q.Prompt.Chat)
		if err != nil {
			t.Fatal(err)
		}
		order = append(order, strings.TrimSuffix(strings.TrimPrefix(text, "<user>"), "<assistant>"))
	}
	if got := strings.Join(order, ", "); got != "question 0, urgent 0, urgent 1, urgent 2, question 1, question 2" {
		t.Errorf("%s", got)
	}
}

// TestCancel: lines in flight end and count; the others are told that they were cancelled.
func TestCancel(t *testing.T) {
	r := start(t, setup{door: Options{InFlight: 2}})
	gate := make(chan struct{})
	r.engine.Play(gated(gate))
	b := r.submit(chats(6), chatPath, "24h")
	if err := r.engine.WaitOpen(r.ctx(), 2); err != nil {
		t.Fatal(err)
	}
	b, err := r.CancelBatch(r.ctx(), b.ID)
	if err != nil || b.Status != "cancelling" || b.CancellingAt == nil {
		t.Fatalf("%+v, %v", b, err)
	}
	<-time.After(30 * time.Millisecond)
	if b, err = r.CancelBatch(r.ctx(), b.ID); err != nil || b.Status != "cancelling" {
		t.Errorf("twice: %+v, %v", b, err)
	}
	close(gate)
	b = r.finish(b)
	if b.Status != "cancelled" || b.CancelledAt == nil || b.RequestCounts != (api.BatchCounts{Total: 6, Completed: 2, Failed: 4}) {
		t.Fatalf("%+v", b)
	}
	if list := r.lines(b.OutputFileID); len(list) != 2 || said(t, list[1]) != "Hello world!" {
		t.Errorf("%+v", list)
	}
	if list := r.lines(b.ErrorFileID); len(list) != 4 || list[0].Error.Code != "batch_cancelled" || *list[3].CustomID != "line-5" {
		t.Errorf("%+v", list)
	}
	_, err = r.CancelBatch(r.ctx(), b.ID)
	refused(t, err, 409, "invalid_status")
}

// TestExpiry: at the end of its window a batch gives what it has.
func TestExpiry(t *testing.T) {
	r := start(t, setup{door: Options{InFlight: 1}})
	gate := make(chan struct{})
	var asked atomic.Int64
	r.engine.Choose(func(*engine.Request) (enginetest.Script, error) {
		if asked.Add(1) == 3 {
			return gated(gate), nil
		}
		return hello, nil
	})
	b := r.submit(chats(6), chatPath, "60s")
	if err := r.engine.WaitRequests(r.ctx(), 3); err != nil {
		t.Fatal(err)
	}
	r.clock.add(time.Minute)
	r.until(b, func(b *api.Batch) bool { return b.Status == "finalizing" })
	close(gate)
	b = r.finish(b)
	if b.Status != "expired" || b.ExpiredAt == nil || b.RequestCounts != (api.BatchCounts{Total: 6, Completed: 3, Failed: 3}) {
		t.Fatalf("%+v", b)
	}
	if list := r.lines(b.ErrorFileID); len(list) != 3 || list[0].Error.Code != "batch_expired" || *list[0].CustomID != "line-3" {
		t.Errorf("%+v", list)
	}
}

// TestRestart: a server that stops gives lines in flight back, and the next one over the same
// folder goes on, each line answered once.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	const lines = 300
	r := start(t, setup{dir: dir, door: Options{InFlight: 4}})
	made := r.submit(chats(lines), chatPath, "24h")
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 4 {
		want := round * 60
		r.engine.Choose(func(q *engine.Request) (enginetest.Script, error) {
			if len(q.Prompt.Chat.Messages)%3 == 0 {
				<-time.After(time.Duration(random.IntN(2)) * time.Millisecond) // under the engine's lock
			}
			return echo(q)
		})
		r.until(made, func(b *api.Batch) bool { return b.RequestCounts.Completed >= want })
		r.end()
		r = start(t, setup{dir: dir, door: Options{InFlight: 4}})
	}
	r.engine.Choose(echo)
	b := r.finish(made)
	if b.Status != "completed" || b.RequestCounts.Failed != 0 {
		t.Fatalf("%+v", b)
	}
	list := r.lines(b.OutputFileID)
	if len(list) != lines {
		t.Fatalf("%d lines", len(list))
	}
	for i, o := range list {
		if *o.CustomID != fmt.Sprintf("line-%d", i) {
			t.Fatalf("line %d is %s", i, *o.CustomID)
		}
		if got := said(t, o); got != fmt.Sprintf("re: question %d", i) && got != "Hello world!" {
			t.Errorf("line %d is answered with %q", i, got)
		}
	}
}

// TestDrain: lines in flight at a shutdown end and count; new work is refused.
func TestDrain(t *testing.T) {
	dir := t.TempDir()
	r := start(t, setup{dir: dir, door: Options{InFlight: 2}})
	gate := make(chan struct{})
	r.engine.Play(gated(gate))
	b := r.submit(chats(5), chatPath, "24h")
	if err := r.engine.WaitOpen(r.ctx(), 2); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	go func() { ended <- r.door.Shutdown(r.ctx()) }()
	go func() { ended <- r.server.Shutdown(r.ctx()) }()
	<-r.server.Draining()
	path, window := chatPath, "24h"
	_, err := r.CreateBatch(r.ctx(), api.BatchRequest{InputFileID: &b.InputFileID, Endpoint: &path, Window: &window})
	refused(t, err, 503, "unavailable")
	if status, text := r.send("POST", "/v1/files", formKind, form("purpose", "batch", "file", "x")); status != 503 {
		t.Errorf("an upload: %d %s", status, text)
	}
	if b, err := r.Batch(r.ctx(), b.ID); err != nil || b.Status != "in_progress" {
		t.Errorf("%+v, %v", b, err)
	}
	close(gate)
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if n := len(r.engine.Requests()); n != 2 {
		t.Errorf("%d lines were started", n)
	}
	if got, err := r.store.Batch("", b.ID); err != nil || got.Counts.Completed != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestOtherModel: a batch waits for a server of the model it was made for.
func TestOtherModel(t *testing.T) {
	dir := t.TempDir()
	r := start(t, setup{dir: dir, idle: true})
	f := r.submit(chats(2), chatPath, "24h")
	r.end()
	s, err := batchqueue.Open(dir, batchqueue.Options{Now: r.clock.now})
	if err != nil {
		t.Fatal(err)
	}
	made, err := s.Create(batchqueue.Order{Model: "another", Endpoint: chatPath, Input: f.InputFileID, Window: "24h", Within: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	r = start(t, setup{dir: dir})
	other, err := r.Batch(r.ctx(), made.ID)
	if err != nil {
		t.Fatal(err)
	}
	r.until(other, func(b *api.Batch) bool { return b.Status == "in_progress" || b.Status == "failed" })
	r.finish(f)
	if b, err := r.Batch(r.ctx(), other.ID); err != nil || b.Status == "completed" || b.RequestCounts.Completed > 0 || len(r.engine.Requests()) != 2 {
		t.Errorf("%+v, %v", b, err)
	}
}

// TestPanics: a handler that falls is a line's failure, not the runner's.
func TestPanics(t *testing.T) {
	r := start(t, setup{})
	r.engine.Choose(func(q *engine.Request) (enginetest.Script, error) { panic("chooser") })
	b := r.finish(r.submit(chats(2), chatPath, "24h"))
	if list := r.lines(b.ErrorFileID); len(list) != 2 || list[0].Response.StatusCode != 500 {
		t.Errorf("%+v", list)
	}
	for _, cause := range []any{http.ErrAbortHandler, "inside"} {
		bare := New(Options{Store: r.store, Inside: func(string) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusOK)
				_, _ = w.Write([]byte(`{"half":`))
				panic(cause)
			})
		}})
		if a := bare.runner.ask(&task{endpoint: chatPath}); a.status != 500 || !strings.Contains(a.body.String(), "internal server error") {
			t.Errorf("%+v", a)
		}
	}
}

// TestSettles: which answers are a line's own.
func TestSettles(t *testing.T) {
	var final []int
	for _, status := range []int{0, 200, 400, 404, 408, 413, 429, 499, 500, 503} {
		if (&answer{status: status}).settles(1) {
			final = append(final, status)
		}
	}
	if !slices.Equal(final, []int{200, 400, 404, 413}) {
		t.Errorf("%v", final)
	}
}

// TestShutdownBeforeStart: a server that never came up ends.
func TestShutdownBeforeStart(t *testing.T) {
	r := start(t, setup{idle: true})
	if err := r.door.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	r.door.Start() // too late: nothing begins
	if b := r.submit(chats(1), chatPath, "24h"); b.Status != "validating" {
		t.Errorf("%+v", b)
	}
}

// TestStoreFails: a store that takes nothing any more holds the lines up, and a shutdown all the
// same comes to its end; the lines are open as before.
func TestStoreFails(t *testing.T) {
	dir := t.TempDir()
	r := start(t, setup{dir: dir, door: Options{InFlight: 2}})
	gate := make(chan struct{})
	r.engine.Play(gated(gate))
	b := r.submit(chats(9), chatPath, "24h")
	if err := r.engine.WaitOpen(r.ctx(), 2); err != nil {
		t.Fatal(err)
	}
	if err := r.store.Close(); err != nil {
		t.Fatal(err)
	}
	close(gate)
	if status, text := r.send("GET", "/v1/batches/"+b.ID, "", ""); status != 500 || !strings.Contains(text, "internal server error") {
		t.Errorf("%d %s", status, text)
	}
	<-time.After(20 * time.Millisecond)
	if err := r.door.Shutdown(r.ctx()); err != nil {
		t.Error(err)
	}
	r.end()
	r = start(t, setup{dir: dir})
	if b = r.finish(b); b.RequestCounts.Completed != 9 {
		t.Errorf("%+v", b)
	}
}

// TestLinesMayWait: a line has the time of its batch, not that of a request that a client waits
// for, whatever its endpoint.
func TestLinesMayWait(t *testing.T) {
	r := start(t, setup{})
	for _, path := range []string{chatPath, "/v1/responses"} {
		body := chat("a")
		if path != chatPath {
			body = `{"input":"a"}`
		}
		if b := r.finish(r.submit(line("a", path, body), path, "24h")); b.RequestCounts.Completed != 1 {
			t.Fatalf("%+v", b)
		}
		all := r.engine.Requests()
		last := all[len(all)-1]
		if left := time.Until(last.Deadline); !last.Background || left < 24*time.Hour || left > 25*time.Hour {
			t.Errorf("%s: in the background: %v, with %v left", path, last.Background, left)
		}
	}
	if code, text := r.send("POST", chatPath, "application/json", chat("a")); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	all := r.engine.Requests()
	if last := all[len(all)-1]; last.Background || time.Until(last.Deadline) > time.Hour {
		t.Errorf("a client waits: %v, %v", last.Background, last.Deadline)
	}
}

// heard passes on that a line of the log has a text.
type heard struct {
	text string
	told chan struct{}
}

func (h heard) Write(p []byte) (int, error) {
	if strings.Contains(string(p), h.text) {
		select {
		case h.told <- struct{}{}:
		default:
		}
	}
	return len(p), nil
}

// TestInputComesBack: an input that cannot be opened for a while (too many open files, a disk that
// is away) holds its batch up, and does not end it.
func TestInputComesBack(t *testing.T) {
	dir, log := t.TempDir(), heard{"cannot be read", make(chan struct{}, 1)}
	r := start(t, setup{dir: dir, idle: true, door: Options{Log: zerolog.New(log)}})
	r.engine.Choose(echo)
	b := r.submit(chats(3), chatPath, "24h")
	if _, err := r.store.Validate(r.ctx(), b.ID); err != nil {
		t.Fatal(err)
	}
	content := filepath.Join(dir, "files", b.InputFileID)
	if err := os.Rename(content, content+".away"); err != nil {
		t.Fatal(err)
	}
	r.door.Start()
	select {
	case <-log.told:
	case <-r.ctx().Done():
		t.Fatal("nobody missed the input")
	}
	if err := os.Rename(content+".away", content); err != nil {
		t.Fatal(err)
	}
	if b = r.finish(b); b.Status != "completed" || b.RequestCounts.Completed != 3 {
		t.Errorf("%+v", b)
	}
}

// TestCrowd: many clients upload, make, cancel and delete at the same time; every batch ends with
// each of its lines once.
func TestCrowd(t *testing.T) {
	r := start(t, setup{door: Options{InFlight: 4}})
	r.engine.Choose(echo)
	var clients sync.WaitGroup
	for who := range 6 {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(3, uint64(who)))
			for range 6 {
				lines := 1 + random.IntN(30)
				b := r.submit(chats(lines), chatPath, "24h")
				cancelled := random.IntN(2) == 0
				if cancelled {
					<-time.After(time.Duration(random.IntN(10)) * time.Millisecond)
					if _, err := r.CancelBatch(r.ctx(), b.ID); err != nil {
						refused(t, err, 409, "invalid_status")
					}
				}
				b = r.finish(b)
				seen := map[string]bool{}
				for _, id := range []*string{b.OutputFileID, b.ErrorFileID} {
					for _, o := range r.lines(id) {
						if seen[*o.CustomID] {
							t.Errorf("%s comes twice", *o.CustomID)
						}
						seen[*o.CustomID] = true
					}
					if id != nil {
						if err := r.DeleteFile(r.ctx(), *id); err != nil {
							t.Error(err)
						}
					}
				}
				n := b.RequestCounts
				if len(seen) != n.Total || n.Completed+n.Failed != n.Total || n.Total != lines && (!cancelled || n.Total != 0) {
					t.Errorf("%d lines of %d: %+v", len(seen), lines, b)
				}
				if err := r.DeleteFile(r.ctx(), b.InputFileID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	clients.Wait()
	if totals, err := r.store.Totals(); err != nil || totals.Bytes != 0 || totals.Lines.Open() != 0 {
		t.Errorf("%+v, %v", totals, err)
	}
}
