package batchqueue

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestReader(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want string // index:number:text, * for long
	}{
		"lines":          {"a\nb\n", "0:1:a 1:2:b"},
		"no end":         {"a\nb", "0:1:a 1:2:b"},
		"blank":          {"\n a \n\n\t\r\nb\n\n", "0:2:a 1:5:b"},
		"carriage":       {"a\r\nb\r\n", "0:1:a 1:2:b"},
		"mark":           {"\uFEFFa\n\uFEFFb\n", "0:1:a 1:2:\uFEFFb"},
		"mark alone":     {"\uFEFF\n", ""},
		"empty":          {"", ""},
		"at the limit":   {"12345678\n", "0:1:12345678"},
		"over the limit": {"123456789\nb\n", "0:1:12345678* 1:2:b"},
		"long at end":    {"a\n123456789", "0:1:a 1:2:12345678*"},
		"long blank":     {"         a\nb", "0:1:* 1:2:b"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for r := NewReader(strings.NewReader(c.in), 8); ; {
				raw, err := r.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				long := ""
				if raw.Long {
					long = "*"
				}
				got = append(got, fmt.Sprintf("%d:%d:%s%s", raw.Index, raw.Number, raw.Text, long))
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("%q, want %q", s, c.want)
			}
		})
	}
}

// TestLongLines: lines beyond the reader's own buffer, up to the limit and over it.
func TestLongLines(t *testing.T) {
	const limit = 300_000
	in := strings.Repeat("x", limit) + "\n" + strings.Repeat("y", limit+1) + "\nz\n"
	r := NewReader(strings.NewReader(in), limit)
	for i, want := range []Raw{{Text: make([]byte, limit)}, {Text: make([]byte, limit), Long: true}, {Text: make([]byte, 1)}} {
		raw, err := r.Next()
		if err != nil || len(raw.Text) != len(want.Text) || raw.Long != want.Long {
			t.Errorf("line %d: %d bytes, long %v, %v", i, len(raw.Text), raw.Long, err)
		}
	}
}

func TestParse(t *testing.T) {
	spec := &Spec{Endpoint: endpoint, Model: served}
	line := func(body string) string {
		return fmt.Sprintf(`{"custom_id":"a","method":"POST","url":%q,"body":%s}`, endpoint, body)
	}
	for _, c := range []struct{ in, code, param string }{
		{request("a"), "", ""},
		{line(`{}`), "", ""},
		{line(`{"model":null,"stream":false}`), "", ""},
		{line(`{"model":7,"stream":"yes"}`), "", ""}, // the endpoint says what is wrong
		{`{"custom_id":`, FaultJSON, ""},
		{`[]`, FaultJSON, ""},
		{`{"custom_id":"a","custom_id":"b"}`, FaultJSON, ""},
		{line(`{"model":"test-model","model":"x"}`), FaultJSON, ""},
		{`{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{},"more":1}`, FaultJSON, ""},
		{`{"custom_id":7,"method":"POST","url":"/v1/chat/completions","body":{}}`, FaultJSON, ""},
		{`{"method":"POST","url":"/v1/chat/completions","body":{}}`, FaultCustomID, "custom_id"},
		{strings.Replace(line(`{}`), `"a"`, `""`, 1), FaultCustomID, "custom_id"},
		{strings.Replace(line(`{}`), `"a"`, `"`+strings.Repeat("a", customIDMax+1)+`"`, 1), FaultCustomID, "custom_id"},
		{strings.Replace(line(`{}`), "POST", "GET", 1), FaultMethod, "method"},
		{`{"custom_id":"a","url":"/v1/chat/completions","body":{}}`, FaultMethod, "method"},
		{strings.Replace(line(`{}`), "chat/", "", 1), FaultURL, "url"},
		{line(`[]`), FaultBody, "body"},
		{`{"custom_id":"a","method":"POST","url":"/v1/chat/completions"}`, FaultBody, "body"},
		{line(`{"model":"gpt-4"}`), FaultModel, "body.model"},
		{line(`{"stream":true}`), FaultStream, "body.stream"},
		{line(`{"background":true}`), FaultStream, "body.background"},
	} {
		got, fault := spec.Parse(Raw{Number: 3, Text: []byte(c.in)})
		switch {
		case fault == nil && c.code == "":
			if got.CustomID != "a" || got.Body.Kind() != '{' {
				t.Errorf("%s: %+v", c.in, got)
			}
		case fault == nil || fault.Code != c.code || fault.Param != c.param || fault.Line != 3 || fault.Message == "":
			t.Errorf("%s: %+v, want %s", c.in, fault, c.code)
		}
	}
	if _, fault := spec.Parse(Raw{Number: 1, Text: []byte(request("a")), Long: true}); fault == nil || fault.Code != FaultLong {
		t.Errorf("a long line: %+v", fault)
	}
}

// TestCustomIDOfRefused: a line that is refused keeps its custom id, whatever is wrong
// with the rest of it.
func TestCustomIDOfRefused(t *testing.T) {
	spec := &Spec{Endpoint: endpoint, Model: served}
	for in, want := range map[string]string{
		`{"custom_id":"keep","method":"POST","url":"/v1/chat/completions","extra":1,"body":{}}`: "keep",
		`{"extra":{"custom_id":"inner"},"custom_id":"keep"}`:                                    "keep",
		`{"custom_id":"keep","method":7}`:                                                       "keep",
		`{"custom_id":"keep","body":{"a":1,"a":2}}`:                                             "keep",
		`{"url":"x","url":"y","custom_id":"keep"}`:                                              "keep",
		`{"custom_id":"a\u2028b","more":1}`:                                                     "a\u2028b",
		`{"custom_id":"keep","method":"GET","url":"x"}`:                                         "keep",
		`{"custom_id":"keep","method":"POST"`:                                                   "keep", // it breaks off
		`{"extra":1,"method":"POST"}`:                                                           "",
		`{"custom_id":7,"more":1}`:                                                              "",
		`{"custom_id":"` + strings.Repeat("x", customIDMax+1) + `","more":1}`:                   "",
		`["custom_id","a"]`:                                                                     "",
		`"custom_id"`:                                                                           "",
		``:                                                                                      "",
	} {
		line, fault := spec.Parse(Raw{Number: 1, Text: []byte(in)})
		if fault == nil || line.CustomID != want {
			t.Errorf("%s: the id %q, want %q (%+v)", in, line.CustomID, want, fault)
		}
	}
	line, fault := spec.Parse(Raw{Number: 1, Text: []byte(request("keep"))[:60], Long: true})
	if fault == nil || line.CustomID != "keep" {
		t.Errorf("a line over the limit: %q, %+v", line.CustomID, fault)
	}
}

// TestSeparators: no line of a result file holds a character at which readers with
// universal line ends would split it.
func TestSeparators(t *testing.T) {
	const batch, text = batchPrefix + "1", "A\u2028B\u0085C\u2029"
	answered, err := Answered(batch, 0, text, Response{StatusCode: 200, Body: []byte(`{"text":"` + text + `","escaped":"\u2028"}`)})
	if err != nil {
		t.Fatal(err)
	}
	refused, err := Refused(batch, 1, text, &Fault{Code: FaultJSON, Message: text})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []Settled{answered, refused} {
		if strings.ContainsAny(string(s.Text), "\u0085\u2028\u2029") || !strings.Contains(string(s.Text), `"custom_id":"A\u2028B\u0085C\u2029"`) {
			t.Errorf("%q", s.Text)
		}
	}
}

// FuzzLines: whatever a file holds, lines come in order, within the limit, and what
// is not a fault has what a line needs; what is wrong is said in valid text.
func FuzzLines(f *testing.F) {
	for _, s := range []string{requests(3), "\uFEFF" + request("a") + "\r\n\n[1,2\n", "{}\n\xff\n", `{"custom_id":"a","body":{"stream":true}}`, strings.Repeat("x", 600)} {
		f.Add([]byte(s))
	}
	spec := &Spec{Endpoint: endpoint, Model: served}
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 512
		number := 0
		r := NewReader(strings.NewReader(string(data)), limit)
		for index := 0; ; index++ {
			raw, err := r.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil || raw.Index != index || raw.Number <= number || len(raw.Text) > limit {
				t.Fatalf("%v after line %d: %+v", err, number, raw)
			}
			number = raw.Number
			line, fault := spec.Parse(raw)
			if fault == nil && (raw.Long || line.CustomID == "" || line.Body.Kind() != '{' || !line.Body.IsValid()) {
				t.Fatalf("%q passes as %+v", raw.Text, line)
			}
			if fault != nil && (fault.Code == "" || !utf8.ValidString(fault.Message) || len(fault.Message) > 1024) {
				t.Fatalf("%q: %+v", raw.Text, fault)
			}
			if fault != nil {
				if _, err := unanswered("batch_1", index, line.CustomID, OutputError{Code: fault.Code, Message: fault.Message}); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
