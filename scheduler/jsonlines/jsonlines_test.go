package jsonlines

import (
	"bytes"
	"encoding/json/v2"
	"testing"
)

func TestEscape(t *testing.T) {
	const text = "a\u0085b\u2028c\u2029d\u0084\u0086\u2027\u202a\u00c2\u0085 \\u2028"
	raw, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	out := Escape(raw)
	if bytes.ContainsAny(out, "\u0085\u2028\u2029") {
		t.Errorf("%q holds a separator", out)
	}
	var back string
	if err := json.Unmarshal(out, &back); err != nil || back != text {
		t.Errorf("%q decodes to %q, %v", out, back, err)
	}
	plain := []byte(`"plain"`)
	if got := Escape(plain); &got[0] != &plain[0] {
		t.Error("text without a separator is copied")
	}
	var sink bytes.Buffer
	if n, err := Writer(&sink).Write(raw); n != len(raw) || err != nil || !bytes.Equal(sink.Bytes(), out) {
		t.Errorf("%d, %v, %q", n, err, sink.Bytes())
	}
}
