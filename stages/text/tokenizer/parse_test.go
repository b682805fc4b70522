package tokenizer

import (
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// base is a small valid tokenizer.json for tests that break it.
const base = `{"version":"1.0","added_tokens":[{"id":4,"content":"<s>","special":true},{"id":5,"content":"</s>","special":true}],
"normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":{"type":"Fuse"},
"model":{"type":"BPE","vocab":{"?":0,"a":1,"b":2,"ab":3},"merges":["a b"]}}`

// patched is base with the value at the path, separated by dots, replaced; an empty value removes
// it.
func patched(t testing.TB, path, value string) []byte {
	t.Helper()
	var top map[string]any
	if err := json.Unmarshal([]byte(base), &top); err != nil {
		t.Fatal(err)
	}
	m := top
	keys := strings.Split(path, ".")
	for _, k := range keys[:len(keys)-1] {
		m = m[k].(map[string]any)
	}
	last := keys[len(keys)-1]
	if value == "" {
		delete(m, last)
	} else {
		m[last] = json.RawMessage(value)
	}
	out, err := json.Marshal(top)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestBase(t *testing.T) { // what the others break is whole
	tok, err := Parse([]byte(base), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode("aab<s>b", EncodeOptions{ParseSpecial: true}); !slices.Equal(got, []int32{1, 3, 4, 2}) {
		t.Errorf("%v", got)
	}
	if tok.VocabSize() != 6 {
		t.Errorf("VocabSize %d, want 6", tok.VocabSize())
	}
}

// deep is a normalizer within too many Sequences.
var deep = strings.Repeat(`{"type":"Sequence","normalizers":[`, maxNesting+1) + `{"type":"NFC"}` + strings.Repeat(`]}`, maxNesting+1)

// refusals lists values to write into base, and the error that each must cause.
var refusals = []struct {
	path, value string
	kind        error
	words       string
}{
	{"model", ``, ErrMalformed, "model: malformed: is missing"},
	{"model", `[]`, ErrMalformed, "model"},
	{"model.type", `"Unigram"`, ErrUnsupported, `"Unigram"`},
	{"model.type", `"WordPiece"`, ErrUnsupported, `"WordPiece"`},
	{"model.vocab", ``, ErrMalformed, "model.vocab"},
	{"model.vocab", `[["a",0.5]]`, ErrUnsupported, "model.vocab"},
	{"model.vocab", `{"a":-1}`, ErrMalformed, "-1"},
	{"model.vocab", `{"a":1.5}`, ErrMalformed, "1.5"},
	{"model.vocab", `{"a":4194304}`, ErrMalformed, "4194304"},
	{"model.vocab", `{"a":99999999999999999999}`, ErrMalformed, "99999999999999999999"},
	{"model.vocab", `{"a":"1"}`, ErrMalformed, `"1"`},
	{"model.vocab", `{"a":1,"b":1}`, ErrMalformed, `"a" and "b"`},
	{"model.vocab", `{"a":[1]}`, ErrMalformed, "[1]"},
	{"model.merges", ``, ErrMalformed, "model.merges"},
	{"model.merges", `{}`, ErrMalformed, "model.merges"},
	{"model.merges", `["a  b"]`, ErrMalformed, "a  b"},
	{"model.merges", `["ab"]`, ErrMalformed, `"ab"`},
	{"model.merges", `[["a"]]`, ErrMalformed, "model.merges"},
	{"model.merges", `[["a","b","c"]]`, ErrMalformed, "model.merges"},
	{"model.merges", `[["a",1]]`, ErrMalformed, "model.merges"},
	{"model.merges", `[7]`, ErrMalformed, "7"},
	{"model.merges", `["a x"]`, ErrMalformed, `"x"`},
	{"model.merges", `["b a"]`, ErrMalformed, `"ba"`},
	{"model.dropout", `0.1`, ErrUnsupported, "model.dropout"},
	{"model.unk_token", `"<unk>"`, ErrMalformed, "<unk>"},
	{"model.continuing_subword_prefix", `"##"`, ErrUnsupported, "##"},
	{"model.end_of_word_suffix", `"</w>"`, ErrUnsupported, "</w>"},
	{"model.byte_fallback", `true`, ErrUnsupported, "<0x00>"},
	{"model.fuse_unk", `"yes"`, ErrMalformed, "fuse_unk"},
	{"normalizer", `{"type":"BertNormalizer"}`, ErrUnsupported, "BertNormalizer"},
	{"normalizer", `{"type":"Precompiled"}`, ErrUnsupported, "Precompiled"},
	{"normalizer", `{"type":"StripAccents"}`, ErrUnsupported, "StripAccents"},
	{"normalizer", `{"type":"ByteLevel"}`, ErrUnsupported, "ByteLevel"},
	{"normalizer", `{"type":"Replace","content":"x"}`, ErrMalformed, "Replace"},
	{"normalizer", `{"type":"Replace","pattern":{"String":""},"content":"x"}`, ErrUnsupported, "empty pattern"},
	{"normalizer", `{"type":"Replace","pattern":{"Regex":"("},"content":"x"}`, ErrUnsupported, "("},
	{"normalizer", deep, ErrUnsupported, "nested"},
	{"pre_tokenizer", `{"type":"Whitespace"}`, ErrUnsupported, "Whitespace"},
	{"pre_tokenizer", `{"type":"Split","pattern":{"String":"a"},"behavior":"Sideways"}`, ErrUnsupported, "Sideways"},
	{"pre_tokenizer", `{"type":"Split","pattern":{"Regex":"[a&&b]"},"behavior":"Isolated"}`, ErrUnsupported, "&&"},
	{"pre_tokenizer", `{"type":"Metaspace","replacement":"__"}`, ErrMalformed, "__"},
	{"pre_tokenizer", `{"type":"Metaspace","replacement":"_","prepend_scheme":"last"}`, ErrUnsupported, "last"},
	{"pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]}`, ErrUnsupported, "Digits"},
	{"pre_tokenizer", `{"type":"ByteLevel"}`, ErrUnsupported, "ByteLevel"},
	{"decoder", `{"type":"ByteLevel"}`, ErrUnsupported, "ByteLevel"},
	{"decoder", `{"type":"WordPiece"}`, ErrUnsupported, "WordPiece"},
	{"decoder", `{"type":"CTC"}`, ErrUnsupported, "CTC"},
	{"decoder", `{"type":"Strip","content":"ab","start":1,"stop":0}`, ErrMalformed, "Strip"},
	{"decoder", `{"type":"Replace","pattern":{"Regex":"a"},"content":""}`, ErrUnsupported, "Regex"},
	{"decoder", `{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"ByteFallback"}]}`, ErrUnsupported, "ByteFallback"},
	{"post_processor", `{"type":"BertProcessing"}`, ErrUnsupported, "BertProcessing"},
	{"post_processor", `{"type":"TemplateProcessing","single":[]}`, ErrUnsupported, "template"},
	{"post_processor", `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}},{"Sequence":{"id":"A"}}]}`, ErrMalformed, `"x"`},
	{"post_processor", `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}},{"Sequence":{"id":"A"}}],"special_tokens":{"x":{"ids":[77]}}}`, ErrMalformed, "77"},
	{"post_processor", `{"type":"TemplateProcessing","single":[{"Sequence":{"id":"B"}}]}`, ErrUnsupported, "template"},
	{"post_processor", `{"type":"Sequence","processors":[{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}}]},{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}}]}]}`, ErrUnsupported, "two templates"},
	{"added_tokens", `{}`, ErrMalformed, "added_tokens"},
	{"added_tokens", `[{"id":1,"content":"z"}]`, ErrMalformed, `"z" and "a"`},
	{"added_tokens", `[{"id":9,"content":"a"}]`, ErrMalformed, `"a" has the id 9`},
	{"added_tokens", `[{"id":4,"content":"x"},{"id":4,"content":"y"}]`, ErrMalformed, `"y" and "x"`},
	{"added_tokens", `[{"id":4,"content":"x"},{"id":4,"content":"x"}]`, ErrMalformed, "twice"},
	{"added_tokens", `[{"id":-4,"content":"x"}]`, ErrMalformed, "-4"},
	{"added_tokens", `[{"id":1073741824,"content":"x"}]`, ErrMalformed, "1073741824"},
}

// Each broken or foreign file is refused with an error of the right kind that names the place.
func TestParseRefuses(t *testing.T) {
	for _, c := range refusals {
		_, err := Parse(patched(t, c.path, c.value), nil)
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.words) || !strings.HasPrefix(err.Error(), "tokenizer.json: ") {
			t.Errorf("%s = %s: %v, want %v with %q", c.path, c.value, err, c.kind, c.words)
		}
	}
	for _, text := range []string{"", "{", "null", "[]", "7", base + "x", base[:len(base)-2], `{"model":1,"model":2}`, "\xff",
		strings.Replace(base, `"a":1`, `"a":1,"a":4`, 1), strings.Replace(base, `"a":1`, `"\ud800":1`, 1),
		strings.Replace(base, `"version"`, `"decoder":null,"version"`, 1),
		strings.Replace(base, `"merges"`, `"merges":[],"merges"`, 1), strings.Replace(base, `"vocab"`, `"vocab":{},"vocab"`, 1)} {
		if _, err := Parse([]byte(text), nil); !errors.Is(err, ErrMalformed) {
			t.Errorf("%.60q: %v, want ErrMalformed", text, err)
		}
	}
}

// The order of the members is free.
func TestMergesBeforeVocab(t *testing.T) {
	text := `{"model":{"merges":[["a","b"]],"vocab":{"a":0,"b":1,"ab":2}},"decoder":{"type":"Fuse"}}`
	tok, err := Parse([]byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode("abb", EncodeOptions{}); !slices.Equal(got, []int32{2, 1}) {
		t.Errorf("%v, want [2 1]", got)
	}
}

// TestFillInTheMiddle: the markers are added tokens that are not special. Raw text spells them;
// text of a chat does not.
func TestFillInTheMiddle(t *testing.T) {
	const config = `{"added_tokens_decoder":{"6":{"content":"<｜fim▁begin｜>"},"7":{"content":"<｜fim▁hole｜>"},"8":{"content":"<｜fim▁end｜>"}}}`
	tok, err := Parse(patched(t, "post_processor", "null"), []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	const text = "<｜fim▁begin｜>a<｜fim▁hole｜>a<｜fim▁end｜>"
	if got := tok.Encode(text, EncodeOptions{ParseSpecial: true}); !slices.Equal(got, []int32{6, 1, 7, 1, 8}) {
		t.Errorf("%v", got)
	}
	if got := tok.Encode(text, EncodeOptions{}); slices.Contains(got, 6) {
		t.Errorf("%v has a marker", got)
	}
}

func TestConfig(t *testing.T) {
	type want struct {
		bos, eos int32
		addBOS   bool
		ids      []int32 // of "a" with AddSpecial
	}
	const template = `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"s"}},{"Sequence":{"id":"A"}},{"SpecialToken":{"id":"e"}}],"special_tokens":{"s":{"ids":[4]},"e":{"ids":[5]}}}`
	for _, c := range []struct {
		post, config string
		want         want
	}{
		{`null`, ``, want{-1, -1, false, []int32{1}}},
		{`null`, `{}`, want{-1, -1, false, []int32{1}}},
		{`null`, `{"bos_token":"<s>","eos_token":{"content":"</s>"}}`, want{4, 5, false, []int32{1}}},
		{`null`, `{"bos_token":"<s>","add_bos_token":true}`, want{4, -1, true, []int32{4, 1}}},
		{`null`, `{"bos_token":"<s>","add_bos_token":false,"eos_token":"</s>","add_eos_token":true}`, want{4, 5, false, []int32{1, 5}}},
		{template, ``, want{4, -1, true, []int32{4, 1, 5}}},
		{template, `{"bos_token":"<s>","add_bos_token":true}`, want{4, -1, true, []int32{4, 1, 5}}},
		{template, `{"bos_token":null,"add_bos_token":false}`, want{4, -1, false, []int32{1, 5}}},
		{template, `{"bos_token":"<s>","eos_token":"</s>","add_eos_token":false}`, want{4, 5, true, []int32{4, 1}}},
		{`null`, `{"added_tokens_decoder":{"6":{"content":"<t>","special":true}},"bos_token":"<t>","add_bos_token":true}`, want{6, -1, true, []int32{6, 1}}},
	} {
		var config []byte
		if c.config != "" {
			config = []byte(c.config)
		}
		tok, err := Parse(patched(t, "post_processor", c.post), config)
		if err != nil {
			t.Errorf("%s: %v", c.config, err)
			continue
		}
		bos, hasBOS := tok.BOS()
		eos, hasEOS := tok.EOS()
		if bos != c.want.bos || eos != c.want.eos || hasBOS != (bos >= 0) || hasEOS != (eos >= 0) || tok.AddBOS() != c.want.addBOS {
			t.Errorf("%s: BOS %d %v, EOS %d %v, AddBOS %v, want %+v", c.config, bos, hasBOS, eos, hasEOS, tok.AddBOS(), c.want)
		}
		if got := tok.Encode("a", EncodeOptions{AddSpecial: true}); !slices.Equal(got, c.want.ids) {
			t.Errorf("%s: %v, want %v", c.config, got, c.want.ids)
		}
		// Wrap does the same, and nothing to ids that are wrapped already.
		for _, ids := range [][]int32{{1}, c.want.ids} {
			got, front, back := tok.Wrap(ids)
			if !slices.Equal(got, c.want.ids) || front+back != len(got)-len(ids) {
				t.Errorf("%s: %v wrapped is %v, %d and %d added, want %v", c.config, ids, got, front, back, c.want.ids)
			}
		}
	}
	for config, words := range map[string]string{
		`{"bos_token":"<none>"}`: "<none>", `{"eos_token":7}`: "eos_token", `{"add_bos_token":true}`: "add_bos_token",
		`{"add_eos_token":true}`: "add_eos_token", `[]`: "top level", `{"add_bos_token":"x"}`: "add_bos_token",
		`{"added_tokens_decoder":{"x":{"content":"t"}}}`: `"x"`, `{"added_tokens_decoder":{"6":null}}`: `"6"`,
		`{"added_tokens_decoder":{"1":{"content":"t"}}}`: `"t" and "a"`, `{"added_tokens_decoder":{"5":{"content":"a"}}}`: `"a" has the id 5`,
	} {
		_, err := Parse([]byte(base), []byte(config))
		if !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), words) || !strings.HasPrefix(err.Error(), "tokenizer_config.json: ") {
			t.Errorf("%s: %v, want ErrMalformed with %q", config, err, words)
		}
	}
}

// The configuration's flags count, but what is special stays so.
func TestConfigOverridesFlags(t *testing.T) {
	tok, err := Parse([]byte(base), []byte(`{"added_tokens_decoder":{"4":{"content":"<s>","rstrip":true,"special":false}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode("<s>  a", EncodeOptions{ParseSpecial: true}); !slices.Equal(got, []int32{4, 1}) {
		t.Errorf("%v, want the spaces gone: [4 1]", got)
	}
	if !tok.IsSpecial(4) {
		t.Error("<s> is no longer special")
	}
}

func TestLoadFolder(t *testing.T) {
	dir := fstest.MapFS{"tokenizer.json": {Data: []byte(base)}}
	if _, err := Load(dir); err != nil {
		t.Errorf("without a configuration: %v", err)
	}
	dir["tokenizer_config.json"] = &fstest.MapFile{Data: []byte(`{"bos_token":"<s>"}`)}
	tok, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if bos, ok := tok.BOS(); !ok || bos != 4 {
		t.Errorf("BOS %d %v, want 4", bos, ok)
	}
	if _, err := Load(fstest.MapFS{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty folder: %v, want ErrNotExist", err)
	}
}

// The reference tokenizers with the configuration that comes with them.
func TestLoadFamilies(t *testing.T) {
	for name, want := range map[string]struct {
		bos, eos string
		addBOS   bool
	}{
		"deepseek_v3": {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", true},
		"qwen3":       {"", "<|im_end|>", false},
		"llama2":      {"<s>", "</s>", true},
		"llama3":      {"<|begin_of_text|>", "<|end_of_text|>", false},
		"llama3_1":    {"<|begin_of_text|>", "<|eot_id|>", true},
		"gpt_oss":     {"<|startoftext|>", "<|return|>", false},
		"gemma3":      {"<bos>", "<end_of_turn>", true},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "llama2" && name != "llama3_1" && name != "deepseek_v3" {
				t.Skip("the three where a post-processor and a configuration meet are enough for a short run")
			}
			dir := modelFolder(t, name)
			tok, err := Load(osDir(dir))
			if err != nil {
				t.Fatal(err)
			}
			text := func(id int32, ok bool) string {
				b, _ := tok.TokenBytes(id)
				return string(b)
			}
			if bos, eos := text(tok.BOS()), text(tok.EOS()); bos != want.bos || eos != want.eos || tok.AddBOS() != want.addBOS {
				t.Errorf("BOS %q, EOS %q, AddBOS %v, want %+v", bos, eos, tok.AddBOS(), want)
			}
		})
	}
}
