package responses

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"krater/actors/engine"
	"krater/transport/api"
	"krater/transport/enginetest"
)

func TestStoredResponse(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		o := r.object("POST", "/v1/responses", `{"input":"hi","metadata":{"k":"v"}}`)
		got := r.object("GET", "/v1/responses/"+o.ID+"?include[]=message.output_text.logprobs", "")
		if string(api.Marshal(got)) != string(api.Marshal(o)) {
			t.Errorf("GET gives %s, want %s", api.Marshal(got), api.Marshal(o))
		}
		if c := r.object("POST", "/v1/responses/"+o.ID+"/cancel", ""); c.Status != "completed" {
			t.Errorf("the cancel of an ended response gives %s", c.Status)
		}
		next := r.object("POST", "/v1/responses", `{"input":"more","previous_response_id":"`+o.ID+`"}`)
		if next.PreviousID == nil || *next.PreviousID != o.ID || !strings.Contains(r.messages(1), "Hello world!") {
			t.Errorf("the next one continues %v with %s", next.PreviousID, r.messages(1))
		}
		status, answer := r.do("DELETE", "/v1/responses/"+o.ID, "")
		if status != 200 || strings.TrimSpace(answer) != `{"id":"`+o.ID+`","object":"response","deleted":true}` {
			t.Errorf("DELETE: %d %s", status, answer)
		}
		for _, c := range [][2]string{{"GET", ""}, {"DELETE", ""}, {"POST", "/cancel"}} {
			status, code, param, _ := r.refusal(c[0], "/v1/responses/"+o.ID+c[1], "")
			if status != 404 || code != "response_not_found" || param != "response_id" {
				t.Errorf("%s%s of a deleted response: %d %s %s", c[0], c[1], status, code, param)
			}
		}
	})
}

func TestUnstoredResponse(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		o := r.object("POST", "/v1/responses", `{"input":"hi","store":false}`)
		if o.Store {
			t.Error("store is true")
		}
		r.refusal("GET", "/v1/responses/"+o.ID, "")
		if status, code, _, _ := r.refusal("POST", "/v1/responses", `{"input":"x","previous_response_id":"`+o.ID+`"}`); status != 400 || code != codePrevious {
			t.Errorf("continued: %d %s", status, code)
		}
		if n := len(r.door.store.byID); n != 0 {
			t.Errorf("%d responses are kept", n)
		}
	})
}

func TestBackgroundOverHTTP(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		script, gate := gated()
		r.engine.Play(script)
		o := r.object("POST", "/v1/responses", `{"input":"hi","background":true}`)
		if o.Status != "in_progress" && o.Status != "queued" {
			t.Errorf("at once: %s", o.Status)
		}
		synctest.Wait()
		if status, code, _, _ := r.refusal("POST", "/v1/responses", `{"input":"x","previous_response_id":"`+o.ID+`"}`); status != 400 || code != "invalid_value" {
			t.Errorf("a running response is continued: %d %s", status, code)
		}
		close(gate)
		synctest.Wait()
		if got := r.object("GET", "/v1/responses/"+o.ID, ""); got.Status != "completed" || got.text() != "abc" {
			t.Errorf("at last: %s %q", got.Status, got.text())
		}

		script, _ = gated()
		r.engine.Play(script)
		o = r.object("POST", "/v1/responses", `{"input":"hi","background":true}`)
		if c := r.object("POST", "/v1/responses/"+o.ID+"/cancel", ""); c.Status != "incomplete" || c.IncompleteDetails.Reason != "cancelled" {
			t.Errorf("cancelled: %s %v", c.Status, c.IncompleteDetails)
		}
		synctest.Wait()

		script, _ = gated()
		r.engine.Play(script)
		o = r.object("POST", "/v1/responses", `{"input":"hi","background":true}`)
		r.do("DELETE", "/v1/responses/"+o.ID, "")
		synctest.Wait()
		if r.engine.Open() != 0 {
			t.Error("a deleted response runs on")
		}
	})
}

func TestFailureStatus(t *testing.T) {
	for _, c := range []struct {
		err    *engine.Error
		status int
		code   string
	}{
		{&engine.Error{Kind: engine.Internal, Message: "broken"}, 500, ""},
		{&engine.Error{Kind: engine.Timeout, Message: "late"}, 408, "timeout"},
		{&engine.Error{Kind: engine.Unavailable, Message: "gone"}, 503, "unavailable"},
	} {
		inBubble(t, Options{}, func(r *rig) {
			r.engine.Play(enginetest.Fail(c.err, "a"))
			if status, code, _, message := r.refusal("POST", "/v1/responses", `{"input":"hi"}`); status != c.status || code != c.code || message != c.err.Message {
				t.Errorf("while running: %d %s %s", status, code, message)
			}
			r.engine.Choose(func(*engine.Request) (enginetest.Script, error) { return nil, c.err })
			if status, _, _, _ := r.refusal("POST", "/v1/responses", `{"input":"hi","stream":true}`); status != c.status {
				t.Errorf("refused: %d", status)
			}
		})
	}
}

// TestEngineBreaksItsContract: a stream that stops without a last event still gives a final one.
func TestEngineBreaksItsContract(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		r.engine.Play(enginetest.Steps(enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Text: "a"}}))
		sse := stream(r, `{"input":"hi","stream":true}`)
		if !strings.Contains(sse, "event: response.failed\n") || !strings.Contains(sse, `"error":{"code":"server_error"`) {
			t.Errorf("it ends with %s", sse)
		}
	})
}

func TestHeartbeat(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		script, gate := gated()
		r.engine.Play(script)
		time.AfterFunc(31*time.Second, func() { close(gate) })
		sse := stream(r, `{"input":"hi","stream":true}`)
		if n := strings.Count(sse, ": keep-alive\n\n"); n != 2 {
			t.Errorf("%d comments in 31 silent seconds: %s", n, sse)
		}
	})
}

func TestOwners(t *testing.T) {
	owner := func(req *http.Request) string { return req.Header.Get("Authorization") }
	inBubble(t, Options{Owner: owner}, func(r *rig) {
		a, _, err := r.dialWith(http.Header{"Authorization": {"a"}})
		if err != nil {
			t.Fatal(err)
		}
		b, _, err := r.dialWith(http.Header{"Authorization": {"b"}})
		if err != nil {
			t.Fatal(err)
		}
		a.send(ask)
		id := a.until("response.completed").Response.ID
		b.send(`{"type":"response.create","input":"x","previous_response_id":"` + id + `"}`)
		b.wantError(400, codePrevious)
		b.send(`{"type":"response.resume","response_id":"` + id + `"}`)
		b.wantError(404, codeNotFound)
		b.send(`{"type":"response.cancel","response_id":"` + id + `"}`)
		b.wantError(404, codeNotFound)
		r.refusal("GET", "/v1/responses/"+id, "")
		time.Sleep(11 * time.Minute)
		if status, code, _, _ := r.refusal("GET", "/v1/responses/"+id, ""); status != 404 || code != codeNotFound {
			t.Errorf("another owner's expired response: %d %s", status, code)
		}
	})
}

// TestSocketsOfOwners: one owner cannot keep the others out.
func TestSocketsOfOwners(t *testing.T) {
	owner := func(req *http.Request) string { return req.Header.Get("Authorization") }
	inBubble(t, Options{Owner: owner, MaxSockets: 4}, func(r *rig) {
		as := func(who string) int {
			_, answer, err := r.dialWith(http.Header{"Authorization": {who}})
			if err == nil {
				return http.StatusSwitchingProtocols
			}
			if answer == nil {
				t.Fatal(err)
			}
			return answer.StatusCode
		}
		for i, c := range []struct {
			who  string
			want int
		}{{"a", 101}, {"a", 101}, {"a", 101}, {"a", 503}, {"b", 101}, {"b", 503}} {
			if got := as(c.who); got != c.want {
				t.Errorf("connection %d, of %s: %d, want %d", i, c.who, got, c.want)
			}
		}
	})
}

// TestPlaces: a response takes one of the server's places for as long as it runs; warm-ups take
// none.
func TestPlaces(t *testing.T) {
	free := 1
	acquire := func(string) (func(), *api.Error) {
		if free == 0 {
			return nil, &api.Error{Status: 429, Type: api.TypeRateLimit, Code: api.CodeOverloaded, Message: "full", RetryAfter: time.Second}
		}
		free--
		return func() { free++ }, nil
	}
	inBubble(t, Options{Acquire: acquire}, func(r *rig) {
		script, gate := gated()
		r.engine.Play(script)
		c := r.dial()
		c.send(ask)
		for got := ""; got != "ab"; { // it runs, and nothing more comes
			got += c.until("response.output_text.delta").Delta
		}
		c.send(`{"type":"response.create","stream_id":"b","input":"hi"}`)
		if f := c.wantError(429, "overloaded"); f.StreamID != "b" {
			t.Errorf("got %s", f.raw)
		}
		c.send(`{"type":"response.create","stream_id":"b","generate":false,"input":"hi"}`)
		c.until("response.completed")
		r.refusal("POST", "/v1/responses", `{"input":"hi"}`)
		close(gate)
		c.until("response.completed")
		synctest.Wait()
		if free != 1 {
			t.Errorf("%d places are free at the end", free)
		}
	})
}

// TestPlaceBeforeBody: who finds no place is told so before its body is read.
func TestPlaceBeforeBody(t *testing.T) {
	acquire := func(string) (func(), *api.Error) {
		return nil, &api.Error{Status: 429, Type: api.TypeRateLimit, Code: api.CodeOverloaded, Message: "full", RetryAfter: time.Second}
	}
	inBubble(t, Options{Acquire: acquire}, func(r *rig) {
		conn, err := r.netDial(t.Context(), "tcp", "example.com:80")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprint(conn, "POST /v1/responses HTTP/1.1\r\nHost: example.com\r\nContent-Type: application/json\r\nContent-Length: 5000000\r\n\r\n")
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Body.Close(); answer.StatusCode != http.StatusTooManyRequests {
			t.Errorf("status %d", answer.StatusCode)
		}
	})
}

// slowTokens is an engine that tokenizes when the gate opens.
type slowTokens struct {
	*enginetest.Engine
	gate chan struct{}
}

func (e *slowTokens) Tokenize(ctx context.Context, p engine.Prompt, most int) ([]int32, error) {
	<-e.gate
	return e.Engine.Tokenize(ctx, p, most)
}

// TestWarmUpsAreBounded: requests that only prepare take none of the server's places, but are not
// without number either.
func TestWarmUpsAreBounded(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		slow := &slowTokens{r.engine, make(chan struct{})}
		r.door.engine = slow
		c := r.dial()
		for i := range maxWarming + 1 {
			c.send(fmt.Sprintf(`{"type":"response.create","stream_id":"s%d","generate":false,"input":"hi"}`, i))
		}
		if f := c.wantError(429, "overloaded"); f.StreamID != fmt.Sprint("s", maxWarming) || f.Error.Headers["retry-after"] != "1" {
			t.Errorf("got %s", f.raw)
		}
		close(slow.gate)
		for range maxWarming {
			c.until("response.completed")
		}
		c.send(`{"type":"response.create","generate":false,"input":"hi"}`)
		c.until("response.completed")
	})
}

func TestBodies(t *testing.T) {
	inBubble(t, Options{MaxMessage: 1000}, func(r *rig) {
		if status, code, _, _ := r.refusal("POST", "/v1/responses", `{"input":"`+strings.Repeat("x", 1000)+`"}`); status != 413 || code != "request_too_large" {
			t.Errorf("too large: %d %s", status, code)
		}
		answer, err := r.server.Client().Post("http://example.com/v1/responses", "text/plain", strings.NewReader(`{"input":"hi"}`))
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusUnsupportedMediaType {
			t.Errorf("text/plain: %d", answer.StatusCode)
		}
		for query, param := range map[string]string{
			"stream=perhaps": "stream", "stream=true&starting_after=-1": "starting_after", "starting_after=x": "starting_after", "foo=1": "foo",
		} {
			if status, _, got, _ := r.refusal("GET", "/v1/responses/resp_x?"+query, ""); status != 400 || got != param {
				t.Errorf("%s: %d names %q", query, status, got)
			}
		}
		o := r.object("POST", "/v1/responses", `{"input":"hi"}`)
		if status, answer := r.do("GET", "/v1/responses/"+o.ID+"?starting_after=7", `{"stream":true}`); status != 200 || !strings.HasPrefix(answer, "event: ") {
			t.Errorf("stream in a body: %d %s", status, answer)
		}
		if status, _, got, _ := r.refusal("GET", "/v1/responses/"+o.ID+"?stream=true&starting_after=99", ""); status != 400 || got != "starting_after" {
			t.Errorf("starting_after 99: %d names %q", status, got)
		}
	})
}

// TestBodyOfAGet: one that does not come is not waited for, one that came does not end the answer.
func TestBodyOfAGet(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		script, gate := gated()
		r.engine.Play(script)
		c := r.dial()
		c.send(ask)
		id := c.want("response.created").Response.ID
		for body, want := range map[string]string{`{"str`: "408 Request Timeout", `{"stream":true}`: "200 OK"} {
			conn, err := r.netDial(t.Context(), "tcp", "example.com:80")
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			fmt.Fprintf(conn, "GET /v1/responses/%s HTTP/1.1\r\nHost: example.com\r\nContent-Length: 15\r\n\r\n%s", id, body)
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			if took := time.Since(began); answer.Status != want || took > time.Second {
				t.Errorf("%s: %s after %v, want %s", body, answer.Status, took, want)
			}
			if answer.StatusCode == http.StatusOK {
				time.AfterFunc(2*bodyWait, func() { close(gate) }) // long after the body's time
				if data, _ := io.ReadAll(answer.Body); !strings.Contains(string(data), "response.completed") {
					t.Errorf("the stream ended early: %s", data)
				}
			}
			conn.Close()
		}
		c.until("response.completed")
	})
}

// TestReplayOverHTTPHolds: who follows an answer over HTTP keeps it alive like a resumed WebSocket,
// and no longer.
func TestReplayOverHTTPHolds(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		script, _ := gated()
		r.engine.Play(script)
		c := r.dial()
		c.send(`{"type":"response.create","input":"hi","resume_grace_s":30}`)
		id := c.want("response.created").Response.ID
		synctest.Wait()
		c.vanish()
		ctx, leave := context.WithCancel(context.Background())
		req, _ := http.NewRequestWithContext(ctx, "GET", "http://example.com/v1/responses/"+id+"?stream=true", nil)
		read := make(chan string, 1)
		go func() {
			answer, err := r.server.Client().Do(req)
			if err != nil {
				read <- err.Error()
				return
			}
			data, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			read <- string(data)
		}()
		time.Sleep(40 * time.Second)
		synctest.Wait()
		if r.engine.Open() != 1 {
			t.Fatal("cancelled while it is followed")
		}
		leave()
		if got := <-read; !strings.Contains(got, `"delta":"ab"`) {
			t.Errorf("the follower got %s", got)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if r.engine.Open() != 0 {
			t.Error("runs after its last follower and the grace time")
		}
	})
}

// TestInputTokens: the count is that of the prompt which the same request has, and takes nothing.
func TestInputTokens(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		first := r.object("POST", "/v1/responses", `{"input":"hi"}`)
		for _, body := range []string{
			`{"input":"hi"}`, `{"input":[{"role":"user","content":"a longer one"}],"instructions":"be short"}`,
			`{"input":"again","previous_response_id":"` + first.ID + `"}`,
		} {
			status, answer := r.do("POST", "/v1/responses/input_tokens", body)
			want := fmt.Sprintf("{\"object\":\"response.input_tokens\",\"input_tokens\":%d}\n", r.object("POST", "/v1/responses", body).Usage.Input)
			if status != http.StatusOK || answer != want {
				t.Errorf("%s: %d %s, want %s", body, status, answer, want)
			}
		}
		if n := len(r.engine.Requests()); n != 4 {
			t.Errorf("the engine has taken %d requests, want those of the 4 responses", n)
		}
		for body, want := range map[string]string{`{}`: "input", `{"input":"a","inptu":1}`: "inptu", `{"input":"a","previous_response_id":"resp_0"}`: "previous_response_id"} {
			if status, _, param, _ := r.refusal("POST", "/v1/responses/input_tokens", body); status != 400 || param != want {
				t.Errorf("%s: %d, param %q", body, status, param)
			}
		}
	})
}
