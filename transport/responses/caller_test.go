package responses

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"krater/actors/engine"
)

// TestCaller: a request over HTTP has the caller of its own header, one of a WebSocket that of its
// client_metadata, else that of the upgrade.
func TestCaller(t *testing.T) {
	read := func(h http.Header) engine.Caller {
		return engine.Caller{State: strings.Join(append(h.Values("traceparent"), h.Values("tracestate")...), " ")}
	}
	inBubble(t, Options{Caller: read}, func(r *rig) {
		ws, _, err := r.dialWith(http.Header{"Traceparent": {"upgrade"}, "Tracestate": {"u=1"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, fields := range []string{
			``, `,"client_metadata":{"ws_request_header_traceparent":"frame","ws_request_header_tracestate":"f=1","other":"x"}`,
			`,"client_metadata":{"other":"x"}`, `,"client_metadata":null`, `,"client_metadata":{"ws_request_header_traceparent":"alone"}`,
		} {
			ws.send(`{"type":"response.create","input":"hi"` + fields + `}`)
			ws.turn()
		}
		r.object("POST", "/v1/responses", `{"input":"hi","client_metadata":{"ws_request_header_traceparent":"frame"}}`)
		req, _ := http.NewRequest("POST", "http://example.com/v1/responses", strings.NewReader(`{"input":"hi"}`))
		req.Header = http.Header{"Content-Type": {"application/json"}, "Traceparent": {"post"}}
		answer, err := r.server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		var got []string
		for _, req := range r.engine.Requests() {
			got = append(got, req.Caller.State)
		}
		if want := []string{"upgrade u=1", "frame f=1", "upgrade u=1", "upgrade u=1", "alone", "", "post"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
