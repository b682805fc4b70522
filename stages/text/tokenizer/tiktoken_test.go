package tokenizer

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ranksOf writes the vocabulary of a byte-level tokenizer as a tiktoken.model.
func ranksOf(t *Tokenizer) []byte {
	var b []byte
	for id := range t.model.vocab.spans {
		if t.model.vocab.has(int32(id)) {
			b = base64.StdEncoding.AppendEncode(b, t.model.vocab.bytes(int32(id)))
			b = append(append(b, ' '), strconv.Itoa(id)+"\n"...)
		}
	}
	return b
}

// TestTiktokenVectors holds ParseTiktoken against OpenAI's tiktoken: Kimi K2's pattern with the ranks
// of gpt-oss (testdata/ranks.py).
func TestTiktokenVectors(t *testing.T) {
	config, err := os.ReadFile("testdata/tiktoken_config.json")
	if err != nil {
		t.Fatal(err)
	}
	ranks := family(t, "gpt_oss")
	tok, err := ParseTiktoken(ranksOf(ranks), config)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join("testdata", "tiktoken.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	n := 0
	for ; lines.Scan(); n++ {
		var v encodeVector
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		text := v.text(t)
		checkIDs(t, tok, n, v, text, EncodeOptions{ParseSpecial: true}, v.IDs)
		if got := tok.Decode(v.IDs, false); got != text {
			t.Errorf("vector %d: decoded\n%q, want\n%q", n, got, text)
		}
	}
	if lines.Err() != nil || n < 400 {
		t.Errorf("%d vectors, %v", n, lines.Err())
	}
	if got, want := tok.VocabSize(), len(ranks.model.vocab.spans)+kimiReserved; got != want {
		t.Errorf("%d tokens, want %d", got, want)
	}
	if id, ok := tok.EOS(); !ok || id != 199999 {
		t.Errorf("EOS is %d", id)
	}
	if !tok.IsSpecial(200007) || tok.IsSpecial(200020) {
		t.Error("the reserved tokens are special, <think> is not")
	}
}

// tinyRanks is a tiktoken.model: every byte, " a" and " aa".
func tinyRanks() string {
	var b strings.Builder
	for i := range 256 {
		b.WriteString(base64.StdEncoding.EncodeToString([]byte{byte(i)}) + " " + strconv.Itoa(i) + "\n")
	}
	return b.String() + "IGE= 256\nIGFh 257\n"
}

const tinyKimi = `{"auto_map":{"AutoTokenizer":["tokenization_kimi.TikTokenTokenizer",null]},"added_tokens_decoder":{"258":{"content":"[EOS]","special":true}},"eos_token":"[EOS]"}`

func TestTiktoken(t *testing.T) {
	tok, err := ParseTiktoken([]byte(tinyRanks()), []byte(tinyKimi))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := tok.Encode(" aa a\u4e2da[EOS]", EncodeOptions{ParseSpecial: true}), []int32{257, 256, 0xe4, 0xb8, 0xad, 'a', 258}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for what, c := range map[string]struct {
		ranks, config, want string
		is                  error
	}{
		"no config":        {tinyRanks(), "", "special tokens", ErrMalformed},
		"other code":       {tinyRanks(), `{"auto_map":{"AutoTokenizer":["tokenization_x.Y",null]},"tokenizer_class":"Y"}`, "tokenization_x.Y", ErrUnsupported},
		"not base64":       {tinyRanks() + "*** 258\n", tinyKimi, "line 259", ErrMalformed},
		"no rank":          {tinyRanks() + "YWI=\n", tinyKimi, "line 259", ErrMalformed},
		"no token":         {tinyRanks() + " 258\n", tinyKimi, "line 259", ErrMalformed},
		"a gap":            {tinyRanks() + "YWI= 259\n", tinyKimi, "1 of 0 to 259", ErrMalformed},
		"a huge rank":      {tinyRanks() + "YWI= 4000000\n", tinyKimi, "4000000", ErrMalformed},
		"a rank twice":     {tinyRanks() + "YWI= 257\n", tinyKimi, "257 occurs twice", ErrMalformed},
		"a token twice":    {tinyRanks() + "IGE= 258\n", tinyKimi, "occurs twice", ErrMalformed},
		"a long token":     {tinyRanks() + strings.Repeat("YWFh", 100) + " 258\n", tinyKimi, "256 bytes", ErrMalformed},
		"no byte":          {"YQ== 0\n", tinyKimi, "byte 0x00", ErrMalformed},
		"a token's id":     {tinyRanks(), strings.Replace(tinyKimi, `"258"`, `"7"`, 1), "added_tokens", ErrMalformed},
		"not an object":    {tinyRanks(), `[]`, "tokenizer_config.json", ErrMalformed},
		"an unknown token": {tinyRanks(), strings.Replace(tinyKimi, `"eos_token":"[EOS]"`, `"eos_token":"[X]"`, 1), "[X]", ErrMalformed},
	} {
		var config []byte
		if c.config != "" {
			config = []byte(c.config)
		}
		if _, err := ParseTiktoken([]byte(c.ranks), config); err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, c.is) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

// FuzzTiktoken: no tiktoken.model makes ParseTiktoken or what it returns panic, and what is encoded
// decodes to the same text.
func FuzzTiktoken(f *testing.F) {
	f.Add([]byte(tinyRanks()), []byte(tinyKimi), " aa \u4e2d[EOS]<|reserved_token_259|>")
	f.Add([]byte("YQ== 0\n"), []byte("{}"), "a")
	f.Fuzz(func(t *testing.T, ranks, config []byte, text string) {
		tok, err := ParseTiktoken(ranks, config)
		if err != nil {
			return
		}
		want, _ := validText(text, nil)
		if got := tok.Decode(tok.Encode(text, EncodeOptions{}), false); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	})
}
