package responses

import (
	"testing"

	"github.com/gorilla/websocket"

	"krater/transport/api"
)

// TestDeltasByHand: deltas that are written by hand have the bytes of the encoder.
func TestDeltasByHand(t *testing.T) {
	for _, kind := range []itemKind{messageItem, reasoningItem, callItem} {
		for _, text := range []string{"", "plain", "\"quoted\" \\ and\n\tcontrol\x01\x7f", "<b>&", "äö \U0001F600", "a\u0085b\u2028c\u2029d", "\xff\xfe half \xf0\x9f"} {
			for _, id := range []string{"", "lane-1"} {
				e := event{kind: textDelta, sequence: 17, index: 2, text: text, item: item{kind: kind, id: "msg_0"}}
				want := deltaEvent{envelope{e.name(), 17, id}, place{ItemID: "msg_0", OutputIndex: 2}, text, nil}
				if kind != callItem {
					want.ContentIndex = new(int)
				}
				if kind == messageItem {
					want.Logprobs = []api.TokenLogprob{}
				}
				if got := string(e.encode(id)); got != string(api.Marshal(want)) {
					t.Errorf("%v %q: %s, want %s", kind, text, got, api.Marshal(want))
				}
			}
		}
	}
}

// TestPanicEndsTheConnection: and not the process.
func TestPanicEndsTheConnection(t *testing.T) {
	s := &socket{door: &Door{opt: Options{}.withDefaults()}, wake: make(chan struct{}, 1)} // no engine
	done := false
	s.handleApart([]byte(ask), func() { done = true })
	if s.ending == nil || s.ending.code != websocket.CloseInternalServerErr || !done {
		t.Errorf("ending %+v, done %v", s.ending, done)
	}
}
