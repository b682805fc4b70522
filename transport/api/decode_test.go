package api

import (
	"encoding/json/jsontext"
	"strings"
	"testing"
)

type probe struct {
	Sampling
	Model *string        `json:"model"`
	N     *int           `json:"n"`
	Raw   jsontext.Value `json:"raw"`
	Items []struct {
		Text string `json:"text"`
	} `json:"items"`
}

var (
	deep = strings.Repeat("[", MaxDepth+1) + strings.Repeat("]", MaxDepth+1)
	many = func(item string, n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + "]"
	}
)

var decodeRefusals = []struct{ name, in, code, param, words string }{
	{"empty", ``, CodeInvalidJSON, "", "not valid JSON"},
	{"blank", ` `, CodeInvalidJSON, "", "not valid JSON"},
	{"not an object", `[1]`, CodeInvalidType, "", "the request must be an object, not an array"},
	{"cut", `{"model":"a`, CodeInvalidJSON, "model", "not valid JSON"},
	{"cut in a list", `{"stop":["a"`, CodeInvalidJSON, "stop", "not valid JSON"},
	{"cut after a comma", `{"stop":["a",`, CodeInvalidJSON, "stop", "not valid JSON"},
	{"cut in ids", `{"stop_token_ids":[1,`, CodeInvalidJSON, "stop_token_ids", "not valid JSON"},
	{"cut in a map", `{"logit_bias":{"1":`, CodeInvalidJSON, "logit_bias", "not valid JSON"},
	{"trailing bytes", `{"n":1} {}`, CodeInvalidJSON, "", "after byte 8"},
	{"trailing comma", `{"n":1,}`, CodeInvalidJSON, "", "not valid JSON"},
	{"comment", `{/* */"n":1}`, CodeInvalidJSON, "", "not valid JSON"},
	{"nan", `{"temperature":NaN}`, CodeInvalidJSON, "temperature", "not valid JSON"},
	{"duplicate", `{"model":"a","model":"b"}`, CodeInvalidJSON, "model", "duplicate key 'model'"},
	{"duplicate by escape", `{"model":"a","mod\u0065l":"b"}`, CodeInvalidJSON, "model", "duplicate key"},
	{"duplicate in raw", `{"raw":{"a":[{"b":1,"b":2}]}}`, CodeInvalidJSON, "raw.a[0].b", "duplicate key 'raw.a[0].b'"},
	{"duplicate in a map", `{"logit_bias":{"1":1,"1":1}}`, CodeInvalidJSON, "logit_bias[1]", "duplicate key"},
	{"escaped lone high surrogate", `{"model":"\ud800"}`, CodeInvalidJSON, "model", "surrogate"},
	{"escaped lone low surrogate", `{"raw":{"x":"\udc00a"}}`, CodeInvalidJSON, "raw.x", "surrogate"},
	{"reversed surrogates", `{"model":"\udc00\ud800"}`, CodeInvalidJSON, "model", "surrogate"},
	{"surrogate in a key", `{"raw":{"\ud800":1}}`, CodeInvalidJSON, "raw", "surrogate"},
	{"surrogate in UTF-8", "{\"model\":\"\xed\xa0\x80\"}", CodeInvalidJSON, "model", "UTF-8"},
	{"bad UTF-8", "{\"model\":\"\xff\"}", CodeInvalidJSON, "model", "UTF-8"},
	{"overlong UTF-8", "{\"model\":\"\xc0\xaf\"}", CodeInvalidJSON, "model", "UTF-8"},
	{"byte order mark", "\xef\xbb\xbf{}", CodeInvalidJSON, "", "not valid JSON"},
	{"control character", "{\"model\":\"a\nb\"}", CodeInvalidJSON, "model", "not valid JSON"},
	{"unknown", `{"temprature":1}`, CodeUnknownField, "temprature", "unknown field 'temprature'"},
	{"other case", `{"Model":"a"}`, CodeUnknownField, "Model", "unknown field 'Model'"},
	{"unknown inside", `{"items":[{"text":"a"},{"txt":"b"}]}`, CodeUnknownField, "items[1].txt", "unknown field 'items[1].txt'"},
	{"type", `{"n":"1"}`, CodeInvalidType, "n", "'n' must be an integer, not a string"},
	{"fraction", `{"n":1.5}`, CodeInvalidType, "n", "'n' must be an integer"},
	{"exponent", `{"n":1e2}`, CodeInvalidType, "n", "'n' must be an integer"},
	{"too big", `{"n":99999999999999999999}`, CodeInvalidValue, "n", "'n' is out of range"},
	{"real too big", `{"temperature":1e999}`, CodeInvalidValue, "temperature", "'temperature' is out of range"},
	{"type inside", `{"items":[{"text":5}]}`, CodeInvalidType, "items[0].text", "'items[0].text' must be a string, not a number"},
	{"bool", `{"ignore_eos":1}`, CodeInvalidType, "ignore_eos", "must be a boolean, not a number"},
	{"stop type", `{"stop":5}`, CodeInvalidType, "stop", "'stop' must be a string or an array of strings"},
	{"stop element", `{"stop":["a",5]}`, CodeInvalidType, "stop", "must be a string"},
	{"many stops", `{"stop":` + many(`"a"`, MaxStops+1) + `}`, CodeInvalidValue, "stop", "more than 16"},
	{"ids type", `{"stop_token_ids":5}`, CodeInvalidType, "stop_token_ids", "array of token ids"},
	{"id negative", `{"stop_token_ids":[-1]}`, CodeInvalidValue, "stop_token_ids", "must be a token id"},
	{"id fraction", `{"stop_token_ids":[1.0]}`, CodeInvalidValue, "stop_token_ids", "must be a token id"},
	{"id range", `{"stop_token_ids":[2147483648]}`, CodeInvalidValue, "stop_token_ids", "must be a token id"},
	{"many ids", `{"stop_token_ids":` + many(`1`, MaxStopIDs+1) + `}`, CodeInvalidValue, "stop_token_ids", "more than 128"},
	{"bias type", `{"logit_bias":[1]}`, CodeInvalidType, "logit_bias", "must be an object"},
	{"bias key", `{"logit_bias":{"x":1}}`, CodeInvalidValue, "logit_bias", "not a token id"},
	{"bias key form", `{"logit_bias":{"01":1}}`, CodeInvalidValue, "logit_bias", "not a token id"},
	{"bias range", `{"logit_bias":{"1":101}}`, CodeInvalidValue, "logit_bias", "between -100 and 100"},
	{"bias value", `{"logit_bias":{"1":"2"}}`, CodeInvalidType, "logit_bias", "must be a number"},
	{"deep", `{"raw":` + deep + `}`, CodeInvalidJSON, "", "deeper than 128"},
}

func TestDecodeRefuses(t *testing.T) {
	for _, c := range decodeRefusals {
		t.Run(c.name, func(t *testing.T) {
			var p probe
			err := Decode([]byte(c.in), &p)
			if err == nil {
				t.Fatalf("accepted %q", c.in)
			}
			if err.Status != 400 || err.Type != TypeInvalidRequest || err.Code != c.code {
				t.Errorf("got %d %s %s, want 400 %s (%s)", err.Status, err.Type, err.Code, c.code, err.Message)
			}
			if !strings.HasPrefix(err.Param, c.param) || (c.param == "") != (err.Param == "") {
				t.Errorf("param %q, want %q (%s)", err.Param, c.param, err.Message)
			}
			if !strings.Contains(err.Message, c.words) {
				t.Errorf("message %q lacks %q", err.Message, c.words)
			}
			if strings.Contains(err.Message, "Go ") || strings.Contains(err.Message, "api.") {
				t.Errorf("message %q shows Go types", err.Message)
			}
		})
	}
}

func TestDecodeAccepts(t *testing.T) {
	var p probe
	in := `{"model":"a\ud83d\ude00","n":null,"stop":"x","stop_token_ids":[0,2147483647],"logit_bias":{"7":-100,"8":0.5},
		"raw": {"b":1,"a":[1e3,null]},"items":[{"text":"日本"}],"temperature":1,"seed":-1}`
	if err := Decode([]byte(in), &p); err != nil {
		t.Fatal(err)
	}
	if *p.Model != "a😀" || p.N != nil || len(p.Stop) != 1 || p.Stop[0] != "x" || p.StopTokenIDs[1] != 2147483647 {
		t.Errorf("%+v", p)
	}
	if p.LogitBias[7] != -100 || p.LogitBias[8] != 0.5 || *p.Temperature != 1 || *p.Seed != -1 {
		t.Errorf("%+v", p.Sampling)
	}
	if got := string(p.Raw); got != `{"b":1,"a":[1e3,null]}` {
		t.Errorf("raw %s: the client's order and text must stay", got)
	}
}

func TestDecodeAtPrefixes(t *testing.T) {
	var items []struct {
		Text string `json:"text"`
	}
	err := DecodeAt("input", []byte(`[{"text":1}]`), &items)
	if err == nil || err.Param != "input[0].text" || !strings.Contains(err.Message, "'input[0].text'") {
		t.Errorf("%+v", err)
	}
	err = DecodeAt("input", []byte(`5`), &items)
	if err == nil || err.Param != "input" {
		t.Errorf("%+v", err)
	}
}

func TestDecodeEchoIsBounded(t *testing.T) {
	err := Decode([]byte(`{"`+strings.Repeat("é", 100000)+`":1}`), &probe{})
	if err == nil || len(err.Message) > 300 || len(err.Param) > 200 {
		t.Fatalf("an error repeats the client's text without bound: %d bytes", len(err.Message))
	}
}

func TestDecodeSize(t *testing.T) {
	if err := Decode(make([]byte, MaxBytes+1), &probe{}); err == nil || err.Code != CodeTooLarge {
		t.Errorf("%+v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{}`, `{"stop":["a","b"],"logit_bias":{"1":2}}`, `{"stop_token_ids":[1,2]}`, `{"raw":{"\ud800":1}}`, `{"items":[{"text":""}]}`, `{"stop":[`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var p probe
		err := Decode(data, &p)
		if err == nil {
			if !jsontext.Value(data).IsValid() {
				t.Fatalf("accepted invalid JSON %q", data)
			}
			return
		}
		if err.Status != 400 || err.Message == "" || len(err.Message) > 1000 {
			t.Fatalf("bad error %+v", err)
		}
		if !jsontext.Value(Marshal(err)).IsValid() {
			t.Fatalf("error does not encode: %+v", err)
		}
	})
}
