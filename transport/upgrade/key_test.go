package upgrade

import (
	"net/http"
	"strings"
	"testing"
)

// TestKey: a key is found among subprotocols in both forms, on handshakes only, and is never agreed to.
func TestKey(t *testing.T) {
	for _, c := range []struct {
		offer, key string
		offered    bool
		agreed     string
	}{
		{"", "", false, ""},
		{"realtime", "", false, "realtime"},
		{"krater-key.cy1ww6TDnw, realtime", "s-pä\u00df", true, "realtime"},
		{"realtime,openai-insecure-api-key.sk-1.2, openai-beta.realtime-v1", "sk-1.2", true, "realtime"},
		{"krater-key.!!", "", true, ""},
		{"krater-key.", "", true, ""},
		{"bearer.abc, base64.authorization.abc, x-token.1, Some-Key-9, chat", "", false, "chat"},
	} {
		h := http.Header{"Connection": {"keep-alive, Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Protocol": {c.offer}}
		r := &http.Request{Header: h}
		if key, offered := Key(r); key != c.key || offered != c.offered {
			t.Errorf("%q: the key is %q, %v", c.offer, key, offered)
		}
		if got := Subprotocol(r); got != c.agreed {
			t.Errorf("%q: agreed to %q", c.offer, got)
		}
		h.Del("Upgrade")
		if key, offered := Key(r); offered {
			t.Errorf("%q without an upgrade: %q", c.offer, key)
		}
	}
}

// FuzzKey: whatever is offered, no part of a key is agreed to.
func FuzzKey(f *testing.F) {
	for _, offer := range []string{"realtime, krater-key.cy1ww6TDnw", "openai-insecure-api-key.sk-1,a", "krater-key.,,\t ,krater-key.!"} {
		f.Add(offer)
	}
	f.Fuzz(func(t *testing.T, offer string) {
		r := &http.Request{Header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Protocol": {offer}}}
		key, offered := Key(r)
		if agreed := Subprotocol(r); key != "" && !offered || strings.HasPrefix(agreed, encodedKey) || strings.HasPrefix(agreed, plainKey) {
			t.Errorf("%q: the key %q, %v, agreed to %q", offer, key, offered, agreed)
		}
	})
}
