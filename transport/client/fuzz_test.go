package client

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"testing"

	"krater/transport/api"
)

// FuzzStream: whatever a server sends, the reader ends with an error, gives no more events than the
// text has, and says the same again afterwards.
func FuzzStream(f *testing.F) {
	for _, text := range []string{
		"data: {\"id\":\"1\",\"choices\":[{\"text\":\"x\"}]}\n\ndata: [DONE]\n\n", ": c\r\ndata:{\r\ndata: }\r\n\r\n", "data: {\"error\":{\"message\":\"m\"}}\n\n", "data", "\n\n\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &Stream[api.TextCompletion]{body: io.NopCloser(nil), lines: bufio.NewReader(bytes.NewReader(data))}
		var err error
		events := -1
		for err == nil {
			events++
			_, err = s.Next()
		}
		if most := bytes.Count(data, []byte("data:")); events > most {
			t.Errorf("%d events of %d", events, most)
		}
		if _, again := s.Next(); !errors.Is(again, err) {
			t.Errorf("%v, then %v", err, again)
		}
		if errors.Is(err, io.EOF) && !bytes.Contains(data, []byte("[DONE]")) {
			t.Error("an end without [DONE]")
		}
	})
}

// FuzzFrame: a frame is an event or an error, and never both.
func FuzzFrame(f *testing.F) {
	for _, text := range []string{
		`{"type":"response.output_text.delta","delta":"x"}`, `{"type":"response.completed","response":{"id":"r","usage":{"input_tokens":1}}}`,
		`{"type":"error","status":429,"error":{"message":"m","headers":{"retry-after":"4"}}}`, `{"type":"error"}`, `[]`, `{"type":"error","error":{"headers":{"":"x"}}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := parseEvent(data)
		if (e == nil) == (err == nil) {
			t.Errorf("%+v %v", e, err)
		}
		if failure, ok := errors.AsType[*api.Error](err); ok && failure.RetryAfter < 0 {
			t.Errorf("%+v", failure)
		}
	})
}

// FuzzMetrics: samples have names.
func FuzzMetrics(f *testing.F) {
	f.Add([]byte("# TYPE a gauge\na 1\nb{c=\"d e\"} 2 3\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseMetrics(data)
		if err != nil {
			return
		}
		for name := range m {
			if name == "" || bytes.Count(data, []byte(name)) == 0 {
				t.Errorf("a sample %q", name)
			}
		}
	})
}
