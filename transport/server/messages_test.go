package server

import (
	"bufio"
	"encoding/json/v2"
	"strings"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/transport/enginetest"
)

const helloMessages = `{"max_tokens":9,"messages":[{"role":"user","content":"hi"}]`

// wantAnthropic checks an error answer of the Anthropic API.
func wantAnthropic(t *testing.T, f *fixture, path, body string, status int, kind, words string, header ...string) {
	t.Helper()
	res := f.send(t, "POST", path, body, header...)
	text := readAll(t, res.Body)
	var e struct {
		Type  string
		Error struct{ Type, Message string }
		ID    string `json:"request_id"`
	}
	if err := json.Unmarshal([]byte(text), &e, json.RejectUnknownMembers(true), json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatalf("%s: %d %s: %v", path, res.StatusCode, text, err)
	}
	if res.StatusCode != status || e.Type != "error" || e.Error.Type != kind || !strings.Contains(e.Error.Message, words) || e.ID == "" || e.ID != res.Header.Get("Request-Id") {
		t.Errorf("%s %s: %d %s", path, body, res.StatusCode, text)
	}
}

func TestMessages(t *testing.T) {
	f := start(t, Options{})
	code, text := f.post(t, "/v1/messages?beta=true", helloMessages+`}`)
	if want := `"content":[{"type":"text","text":"Hello world!"}],"stop_reason":"end_turn"`; code != 200 || !strings.Contains(text, want) || !strings.Contains(text, `"id":"msg_`) {
		t.Errorf("%d %s", code, text)
	}
	_, text = f.post(t, "/v1/messages", helloMessages+`,"stream":true}`)
	var names []string
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "event: "); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}
	if got := strings.Join(names, " "); got != "message_start content_block_start ping content_block_delta content_block_delta content_block_delta content_block_stop message_delta message_stop" {
		t.Errorf("%s\n%s", got, text)
	}
	if code, text := f.post(t, "/v1/messages/count_tokens", `{"system":"s","messages":[{"role":"user","content":"hi"}]}`); code != 200 || text != "{\"input_tokens\":29}\n" {
		t.Errorf("%d %s", code, text)
	}
	if res := f.send(t, "GET", "/v1/models", "", "Anthropic-Version", "2023-06-01"); !strings.Contains(readAll(t, res.Body), `"type":"model","id":"test-model","display_name"`) {
		t.Error("no list of models in Anthropic's form")
	}
}

func TestMessagesErrors(t *testing.T) {
	f := start(t, Options{Keys: []KeyHash{HashKey("k")}, MaxBody: 1000})
	wantAnthropic(t, f, "/v1/messages", helloMessages+`}`, 401, "authentication_error", "key")
	key := []string{"X-Api-Key", "k"}
	wantAnthropic(t, f, "/v1/messages", helloMessages+`,"model":"other"}`, 404, "not_found_error", "test-model", key...)
	wantAnthropic(t, f, "/v1/messages", `{"messages":[{"role":"user","content":"hi"}]}`, 400, "invalid_request_error", "max_tokens", key...)
	wantAnthropic(t, f, "/v1/messages", helloMessages+`,"x":1}`, 400, "invalid_request_error", "'x'", key...)
	wantAnthropic(t, f, "/v1/messages", helloMessages+`,"system":"`+strings.Repeat("x", 1000)+`"}`, 413, "request_too_large", "1000", key...)
	wantAnthropic(t, f, "/v1/messages", helloMessages+`,"system":"`+strings.Repeat("x", 300)+`"}`, 400, "invalid_request_error", "context", key...)
	wantAnthropic(t, f, "/v1/messages/count_tokens", `{"messages":[]}`, 400, "invalid_request_error", "messages", key...)
	wantAnthropic(t, f, "/v1/messages/batches", `{}`, 400, "invalid_request_error", "batches of messages", key...)
	f.engine.SetReady(&engine.Error{Kind: engine.Unavailable, Message: "the model is loading"})
	wantAnthropic(t, f, "/v1/messages", helloMessages+`}`, 503, "overloaded_error", "loading", key...)
	f.engine.SetReady(nil)
	f.engine.Play(enginetest.Fail(&engine.Error{Kind: engine.Internal, Message: "a stage failed"}, "Hel"))
	wantAnthropic(t, f, "/v1/messages", helloMessages+`}`, 500, "api_error", "a stage failed", key...)
	res := f.send(t, "POST", "/v1/messages", helloMessages+`,"stream":true}`, key...)
	text := readAll(t, res.Body)
	_, last, _ := strings.Cut(text, "event: error\ndata: ")
	if res.StatusCode != 200 || !strings.HasPrefix(last, `{"type":"error","error":{"type":"api_error","message":"a stage failed"},"request_id":"`) || strings.Contains(text, "message_stop") {
		t.Error(text)
	}
}

// TestMessagesPing: a long prefill begins the message and sends pings.
func TestMessagesPing(t *testing.T) {
	f := start(t, Options{Heartbeat: time.Millisecond})
	gate := make(chan struct{})
	f.engine.Play(enginetest.Gated(enginetest.Text("a"), 2, gate))
	res := f.send(t, "POST", "/v1/messages", helloMessages+`,"stream":true}`)
	in := bufio.NewReader(res.Body)
	for _, want := range []string{"event: message_start", `"input_tokens":20`, "", "event: ping", `data: {"type":"ping"}`} {
		line, err := in.ReadString('\n')
		if err != nil || !strings.Contains(line, want) {
			t.Fatalf("%q %v, want %s", line, err, want)
		}
	}
	close(gate)
	if rest := readAll(t, in); strings.Contains(rest, "message_start") || !strings.HasSuffix(rest, "data: {\"type\":\"message_stop\"}\n\n") {
		t.Error(rest)
	}
}
