package responses

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"krater/actors/engine"
	"krater/transport/enginetest"
)

// gated returns an answer of three pieces that waits before the third.
func gated() (enginetest.Script, chan struct{}) {
	gate := make(chan struct{})
	return enginetest.Gated(enginetest.Text("a", "b", "c"), 4, gate), gate
}

// vanish drops the connection without a closing handshake.
func (c *client) vanish() { c.ws.NetConn().Close() }

// TestVanish: a client that goes after two tokens ends its answer at once, however it
// goes.
func TestVanish(t *testing.T) {
	for name, leave := range map[string]func(*client){
		"dropped": (*client).vanish,
		"closed": func(c *client) {
			_ = c.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1000, ""), time.Now().Add(time.Second))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Options{}, func(r *rig) {
				script, _ := gated()
				r.engine.Play(script)
				c := r.dial()
				c.send(ask)
				id := c.want("response.created").Response.ID
				for got := ""; got != "ab"; {
					got += c.until("response.output_text.delta").Delta
				}
				start := time.Now()
				leave(c)
				synctest.Wait()
				if took := time.Since(start); r.engine.Open() != 0 || took != 0 {
					t.Errorf("%d streams are open %v after the client left", r.engine.Open(), took)
				}
				o := r.object("GET", "/v1/responses/"+id, "")
				if o.Status != "incomplete" || o.IncompleteDetails.Reason != "cancelled" || o.text() != "ab" {
					t.Errorf("what is left: %s %v %q", o.Status, o.IncompleteDetails, o.text())
				}
			})
		})
	}
}

func TestVanishOverHTTP(t *testing.T) {
	for _, payload := range []string{`{"input":"hi","stream":true}`, `{"input":"hi"}`} {
		inBubble(t, Options{}, func(r *rig) {
			script, _ := gated()
			r.engine.Play(script)
			ctx, cancel := context.WithCancel(context.Background())
			req, _ := http.NewRequestWithContext(ctx, "POST", "http://example.com/v1/responses", strings.NewReader(payload))
			req.Header.Set("Content-Type", "application/json")
			go func() {
				if answer, err := r.server.Client().Do(req); err == nil {
					_, _ = io.Copy(io.Discard, answer.Body)
					answer.Body.Close()
				}
			}()
			synctest.Wait()
			if r.engine.Open() != 1 {
				t.Fatal("the request does not run")
			}
			cancel()
			synctest.Wait()
			if r.engine.Open() != 0 {
				t.Errorf("%s: the stream is open after the client left", payload)
			}
		})
	}
}

// TestVanishBeforeTheEngineAnswers: the client leaves while Submit works.
func TestVanishBeforeTheEngineAnswers(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		working := make(chan struct{})
		r.engine.Choose(func(*engine.Request) (enginetest.Script, error) {
			<-working
			return enginetest.Forever("x"), nil
		})
		c := r.dial()
		c.send(ask)
		synctest.Wait()
		c.vanish()
		synctest.Wait()
		close(working)
		synctest.Wait()
		if r.engine.Open() != 0 {
			t.Error("the stream of a lost client runs")
		}
	})
}

func TestCancel(t *testing.T) {
	for _, how := range []string{
		`{"type":"response.cancel","response_id":"%s"}`,
		`{"type":"response.cancel","stream_id":"lane"}`,
	} {
		inBubble(t, Options{}, func(r *rig) {
			script, _ := gated()
			r.engine.Play(script)
			c := r.dial()
			c.send(`{"type":"response.create","stream_id":"lane","input":"hi"}`)
			id := c.want("response.created").Response.ID
			synctest.Wait()
			if strings.Contains(how, "%s") {
				how = fmt.Sprintf(how, id)
			}
			c.send(how)
			end := c.until("response.incomplete")
			if end.Response.Status != "incomplete" || end.Response.IncompleteDetails.Reason != "cancelled" || end.Response.text() != "ab" || end.StreamID != "lane" {
				t.Errorf("the cancelled answer ends with %s", end.raw)
			}
			if got := end.Response.Output[0].Status; got != "incomplete" {
				t.Errorf("its message is %s", got)
			}
			synctest.Wait()
			if r.engine.Open() != 0 {
				t.Error("the stream is open after the cancel")
			}
			c.send(`{"type":"response.cancel","response_id":"` + id + `"}`)
			c.wantError(409, "response_cancel_not_active")
			r.engine.Play(enginetest.Text("again"))
			c.send(`{"type":"response.create","stream_id":"lane","input":"hi","previous_response_id":"` + id + `"}`)
			c.until("response.completed")
			if got := r.messages(1); !strings.Contains(got, `{"role":"assistant","content":"ab"}`) {
				t.Errorf("a cancelled answer is continued as %s", got)
			}
		})
	}
}

// TestCancelTellsTheUsage: the engine's last event after a cancel is waited for, since it has the
// usage; an engine that gives none is left.
func TestCancelTellsTheUsage(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		var last chan engine.Event
		d := New(&stubborn{Engine: r.engine, last: &last}, Options{})
		r.door = d
		r.server.Config.Handler = d.Handler()
		for _, answers := range []bool{true, false} {
			last = make(chan engine.Event, 1)
			c := r.dial()
			c.send(ask)
			c.until("response.created")
			c.send(`{"type":"response.cancel"}`)
			if answers {
				last <- engine.Event{Kind: engine.Done, Finish: engine.FinishCancelled, Usage: engine.Usage{Prompt: 7, Completion: 3}}
			}
			start := time.Now()
			end := c.until("response.incomplete")
			took := time.Since(start)
			if answers && (end.Response.Usage == nil || end.Response.Usage.Total != 10 || took != 0) {
				t.Errorf("after %v: %s", took, end.raw)
			}
			if !answers && (end.Response.Usage != nil || took != cancelWait) {
				t.Errorf("after %v: %s", took, end.raw)
			}
		}
	})
}

// stubborn is an engine whose streams only give what the test sends.
type stubborn struct {
	engine.Engine
	last *chan engine.Event
}

func (s *stubborn) Submit(context.Context, *engine.Request) (engine.Stream, error) {
	return stubbornStream{*s.last}, nil
}

type stubbornStream struct{ last chan engine.Event }

func (s stubbornStream) Next(ctx context.Context) (engine.Event, error) {
	if ctx.Err() != nil {
		return engine.Event{}, ctx.Err()
	}
	select {
	case ev := <-s.last:
		return ev, nil
	case <-ctx.Done():
		return engine.Event{}, ctx.Err()
	}
}
func (stubbornStream) Close()            {}
func (stubbornStream) PromptTokens() int { return 7 }

// TestCancelBeforeTheEngineAnswers: an empty answer, not an error.
func TestCancelBeforeTheEngineAnswers(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		working := make(chan struct{})
		r.engine.Choose(func(*engine.Request) (enginetest.Script, error) {
			<-working
			return nil, context.Canceled
		})
		c := r.dial()
		c.send(ask)
		c.send(`{"type":"response.cancel"}`)
		synctest.Wait()
		close(working)
		all := c.turn()
		if end := all[len(all)-1]; end.Type != "response.incomplete" || len(end.Response.Output) != 0 {
			t.Errorf("it ends with %s", end.raw)
		}
	})
}

// TestResume: a new connection gets what was made after a sequence number, byte for byte, and the
// rest as it comes.
func TestResume(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		script, gate := gated()
		r.engine.Play(script)
		c := r.dial()
		c.send(`{"type":"response.create","input":"hi","resume_grace_s":30}`)
		id := c.want("response.created").Response.ID
		for got := ""; got != "ab"; {
			got += c.until("response.output_text.delta").Delta
		}
		c.vanish()
		time.Sleep(29 * time.Second)
		all := r.dial()
		all.send(`{"type":"response.resume","response_id":"` + id + `"}`)
		synctest.Wait()
		tail := r.dial()
		tail.send(`{"type":"response.resume","response_id":"` + id + `","after":5,"stream_id":"tail"}`)
		time.Sleep(10 * time.Second) // the grace time is over, but they hold it
		close(gate)
		whole := all.turn()
		end := whole[len(whole)-1]
		if end.Type != "response.completed" || end.Response.text() != "abc" {
			t.Fatalf("the replay ends with %s", end.raw)
		}
		// The tail is the same events, but for the joined deltas and the stream.
		text := ""
		for {
			f := tail.recv()
			if f.Sequence <= 5 || f.StreamID != "tail" {
				t.Errorf("the tail has %s", f.raw)
			}
			text += f.Delta
			if f.Type != "response.output_text.delta" {
				same := whole[len(whole)-1-(end.Sequence-f.Sequence)]
				if strings.Replace(f.raw, `,"stream_id":"tail"`, "", 1) != same.raw {
					t.Errorf("the tail differs:\n got %s\nwant %s", f.raw, same.raw)
				}
			}
			if f.Type == "response.completed" {
				break
			}
		}
		if text != "bc" {
			t.Errorf("the tail's text is %q", text)
		}
		// After its end a resume gives the final event at least.
		all.send(fmt.Sprintf(`{"type":"response.resume","response_id":%q,"after":%d}`, id, end.Sequence))
		if f := all.want("response.completed"); f.raw != end.raw {
			t.Errorf("the final event comes again as %s", f.raw)
		}
		all.send(fmt.Sprintf(`{"type":"response.resume","response_id":%q,"after":%d}`, id, end.Sequence+1))
		all.wantError(400, "invalid_value")
		sse := r.sse("/v1/responses/" + id + "?stream=true&starting_after=6")
		if !strings.HasPrefix(sse, "event: response.output_text.") || !strings.HasSuffix(sse, end.raw+"\n\n") {
			t.Errorf("the replay over HTTP is %s", sse)
		}
	})
}

// sse reads a whole event stream.
func (r *rig) sse(path string) string {
	r.t.Helper()
	status, answer := r.do("GET", path, "")
	if status != http.StatusOK {
		r.t.Fatalf("%s: %d %s", path, status, answer)
	}
	return answer
}

// TestGraceEnds: with nobody back in time the answer is cancelled, and a resume replays what was
// made and its end.
func TestGraceEnds(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		script, _ := gated()
		r.engine.Play(script)
		c := r.dial()
		c.send(`{"type":"response.create","store":false,"input":"hi","resume_grace_s":30}`)
		id := c.want("response.created").Response.ID
		synctest.Wait()
		c.vanish()
		time.Sleep(30*time.Second - 1)
		synctest.Wait()
		if r.engine.Open() != 1 {
			t.Fatal("cancelled within its grace time")
		}
		time.Sleep(1)
		synctest.Wait()
		if r.engine.Open() != 0 {
			t.Fatal("runs after its grace time")
		}
		again := r.dial()
		again.send(`{"type":"response.resume","response_id":"` + id + `"}`)
		all := again.turn()
		end := all[len(all)-1]
		if end.Type != "response.incomplete" || end.Response.IncompleteDetails.Reason != "cancelled" || end.Response.text() != "ab" {
			t.Errorf("the resumed answer ends with %s", end.raw)
		}
		// The connection that resumed it may continue it.
		r.engine.Play(enginetest.Text("x"))
		again.send(`{"type":"response.create","input":"more","previous_response_id":"` + id + `"}`)
		again.turn()
	})
}

// TestExpired: events are kept 10 minutes, a connection's own conversation for as long as it lives.
func TestExpired(t *testing.T) {
	inBubble(t, Options{PongWait: time.Hour}, func(r *rig) {
		c := r.dial()
		c.send(ask)
		id := c.until("response.completed").Response.ID
		time.Sleep(10*time.Minute - 1)
		r.object("GET", "/v1/responses/"+id, "")
		time.Sleep(1)
		if status, code, _, _ := r.refusal("GET", "/v1/responses/"+id, ""); status != 404 || code != "response_expired" {
			t.Errorf("GET: %d %s", status, code)
		}
		c.send(`{"type":"response.resume","response_id":"` + id + `"}`)
		c.wantError(404, "response_expired")
		c.send(`{"type":"response.create","input":"still","previous_response_id":"` + id + `"}`)
		c.turn()
		c.vanish()
		synctest.Wait()
		other := r.dial()
		other.send(`{"type":"response.resume","response_id":"` + id + `"}`)
		other.wantError(404, "response_expired")
		other.send(`{"type":"response.create","input":"no","previous_response_id":"` + id + `"}`)
		other.wantError(400, "previous_response_not_found")
	})
}

func TestBackground(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		script, gate := gated()
		r.engine.Play(script)
		c := r.dial()
		c.send(`{"type":"response.create","input":"hi","background":true}`)
		id := c.want("response.created").Response.ID
		synctest.Wait()
		c.vanish()
		synctest.Wait()
		if o := r.object("GET", "/v1/responses/"+id, ""); o.Status != "in_progress" || o.text() != "ab" || o.Output[0].Status != "in_progress" {
			t.Errorf("in the background it is %s with %q", o.Status, o.text())
		}
		close(gate)
		synctest.Wait()
		if o := r.object("GET", "/v1/responses/"+id, ""); o.Status != "completed" || o.text() != "abc" || !o.Background {
			t.Errorf("at its end it is %s with %q", o.Status, o.text())
		}
	})
}

// TestShutdown: running answers end, each socket is closed with 1001 after its last event, and
// nothing new begins.
func TestShutdown(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		script, gate := gated()
		r.engine.Play(script)
		idle, busy := r.dial(), r.dial()
		busy.send(ask)
		busy.want("response.created")
		synctest.Wait()
		done := make(chan error, 1)
		go func() { done <- r.door.Shutdown(context.Background()) }()
		idle.wantClose(websocket.CloseGoingAway)
		busy.send(`{"type":"response.create","stream_id":"late","input":"hi"}`)
		for f := busy.recv(); ; f = busy.recv() {
			if f.Type == "error" {
				if f.Error.Code != "unavailable" || f.Status != 503 {
					t.Errorf("a late request got %s", f.raw)
				}
				break
			}
		}
		if status, _, _, _ := r.refusal("POST", "/v1/responses", `{"input":"hi"}`); status != 503 {
			t.Errorf("a late POST got %d", status)
		}
		if _, answer, err := r.dialWith(nil); err == nil || answer.StatusCode != 503 {
			t.Errorf("a late upgrade got %v", err)
		}
		close(gate)
		if end := busy.until("response.completed"); end.Response.text() != "abc" {
			t.Errorf("the answer ends with %s", end.raw)
		}
		busy.wantClose(websocket.CloseGoingAway)
		if err := <-done; err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	})
}

// TestShutdownCutsShort: what runs when the patience ends fails, in a final event, over both
// transports.
func TestShutdownCutsShort(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		script, _ := gated()
		r.engine.Play(script)
		c := r.dial()
		c.send(ask)
		posted := make(chan string, 1)
		go func() { posted <- stream(r, `{"stream":true,"input":"hi"}`) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		done := make(chan error, 1)
		start := time.Now()
		go func() { done <- r.door.Shutdown(ctx) }()
		end := c.until("response.failed")
		if end.Response.Error.Code != "server_error" || end.Response.Status != "failed" || end.Response.text() != "ab" {
			t.Errorf("the answer ends with %s", end.raw)
		}
		c.wantClose(websocket.CloseGoingAway)
		if err := <-done; err != context.DeadlineExceeded || time.Since(start) != 5*time.Second {
			t.Errorf("Shutdown: %v after %v", err, time.Since(start))
		}
		if sse := <-posted; !strings.Contains(sse, "event: response.failed\n") {
			t.Errorf("over HTTP: %s", sse)
		}
	})
}

// TestServerCut: a server that cuts its requests' contexts gets final events out too, also without
// the door's own Shutdown, which ends WebSockets.
func TestServerCut(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		base, cut := context.WithCancelCause(context.Background())
		inner := r.door.Handler()
		r.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			ctx, cancel := context.WithCancelCause(req.Context())
			defer context.AfterFunc(base, func() { cancel(context.Cause(base)) })()
			inner.ServeHTTP(w, req.WithContext(ctx))
		})
		script, _ := gated()
		r.engine.Play(script)
		posted, whole := make(chan string, 1), make(chan int, 1)
		go func() { posted <- stream(r, `{"stream":true,"input":"hi"}`) }()
		go func() { status, _ := r.do("POST", "/v1/responses", `{"input":"hi"}`); whole <- status }()
		synctest.Wait()
		cut(fmt.Errorf("the server's patience ended"))
		if sse := <-posted; !strings.Contains(sse, "event: response.failed\n") {
			t.Errorf("over HTTP: %s", sse)
		}
		if status := <-whole; status != 503 {
			t.Errorf("without a stream: %d", status)
		}
	})
}
