package responses

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"testing"
	"unicode/utf8"

	"krater/transport/api"
	"krater/transport/enginetest"
)

// FuzzFrames feeds client frames to a socket without a network: nothing may panic, every refusal is
// an error frame in the documented form, and every response that was started ends.
func FuzzFrames(f *testing.F) {
	for _, seed := range []string{
		ask, `{"type":"response.cancel"}`, `{"type":"response.resume","response_id":"resp_1","after":3}`,
		`{"type":"response.create","stream_id":"a","input":[{"role":"user","content":[{"type":"input_text","text":"x"}]}],"store":false}`,
		`{"type":"response.create","generate":false,"tools":[{}],"tool_choice":"none","metadata":{"a":"b"}}`,
		`{"type":"response.create","input":"x","include":["message.output_text.logprobs"],"top_logprobs":3,"text":{"format":{"type":"text"}}}`,
		`{"type":"response.create","input":"x","stop":["a"],"logit_bias":{"1":2},"seed":-1,"resume_grace_s":1}`,
		`{"type":"x"}`, `[]`, `{`, `{"type":"response.create","input":"\ud800"}`, `{"type":"response.create","type":"response.cancel"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if !utf8.Valid(data) {
			t.Skip("closes with 1007 before it is looked at")
		}
		e := enginetest.New()
		d := New(e, Options{})
		s := &socket{door: d, wake: make(chan struct{}, 1), gone: make(chan struct{})}
		s.handle(data, func() {})
		for { // until nothing is in flight
			frame, _ := s.next(nil)
			if frame == nil {
				s.mu.Lock()
				idle := len(s.streams) == 0 && len(s.errors) == 0
				s.mu.Unlock()
				if idle {
					break
				}
				<-s.wake
				continue
			}
			checkFrame(t, frame)
		}
		s.lost()
		if err := d.Shutdown(t.Context()); err != nil || e.Open() != 0 {
			t.Fatalf("%v, %d streams open", err, e.Open())
		}
	})
}

func checkFrame(t *testing.T, data []byte) {
	var f struct {
		Type   string `json:"type"`
		Status int    `json:"status"`
		Error  *struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	if f.Type == "error" && (f.Status < 400 || f.Error == nil || f.Error.Type == "" || f.Error.Message == "") {
		t.Fatalf("not a full error: %s", data)
	}
}

// FuzzItems: the items of any input that is accepted are accepted again, and are the same
// conversation.
func FuzzItems(f *testing.F) {
	for _, seed := range []string{
		`[{"role":"user","content":"a"},{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"r"}]},{"role":"assistant","content":[{"type":"output_text","text":"b"}]},{"type":"function_call","call_id":"c","name":"f","arguments":""},{"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"x"},{"type":"input_text","text":"y"}]}]`,
		`[{"role":"assistant","content":""},{"role":"assistant","content":"a"},{"role":"system","content":[{"type":"input_text","text":""}]}]`, `"a"`, `[{"type":"item_reference","id":"x"}]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var raw jsontext.Value
		if api.Decode(data, &raw) != nil {
			return
		}
		turns, err := readInput(raw)
		if err != nil {
			return
		}
		var items []InputItem
		for i := range turns {
			items = append(items, turns[i].items()...)
		}
		again, err := readInput(api.Marshal(items))
		if err != nil || len(again) != len(turns) {
			t.Fatalf("%s: %v, %d turns of %d", api.Marshal(items), err, len(again), len(turns))
		}
		back, cause := readTurns(joinTurns(nil, turns))
		if cause != nil || string(joinTurns(nil, back)) != string(joinTurns(nil, turns)) {
			t.Fatalf("%v: %s became %s", cause, joinTurns(nil, turns), joinTurns(nil, back))
		}
	})
}
