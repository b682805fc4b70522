package source

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/kernels/tensor"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/gguf"
	"krater/stages/weights/gguf/folder"
)

// smallGGUF is a file of a model with one layer and a tokenizer of bytes. kind is the type of
// matrices.
func smallGGUF(t testing.TB, kind gguf.Type, more ...gguf.Pair) []byte {
	t.Helper()
	tokens := MadeTokens(256)
	tokens[254] = "ab"
	meta := []gguf.Pair{{Key: "general.architecture", Value: "llama"}, {Key: "tokenizer.ggml.model", Value: "gpt2"}, {Key: "tokenizer.ggml.pre", Value: "gpt-2"},
		{Key: "tokenizer.ggml.tokens", Value: tokens}, {Key: "tokenizer.ggml.merges", Value: []string{"a b"}}, {Key: "tokenizer.ggml.eos_token_id", Value: uint32(0)},
		{Key: "tokenizer.chat_template", Value: "{{ messages[0].content }}"}, {Key: "general.sampling.temp", Value: float32(0.5)}}
	for key, v := range map[string]any{"block_count": uint32(1), "context_length": uint32(64), "embedding_length": uint32(32), "feed_forward_length": uint32(32),
		"attention.head_count": uint32(2), "attention.head_count_kv": uint32(1), "attention.layer_norm_rms_epsilon": float32(1e-6), "rope.dimension_count": uint32(16)} {
		meta = append(meta, gguf.Pair{Key: "llama." + key, Value: v})
	}
	var list []gguf.Tensor
	add := func(name string, kind gguf.Type, shape ...int) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(i%13) - 6
		}
		data := make([]byte, n/kind.Block().Elements*kind.Block().Bytes)
		if err := kind.Encode(data, x); err != nil {
			t.Fatal(err)
		}
		list = append(list, gguf.Tensor{Name: name, Type: kind, Shape: shape, Data: data})
	}
	add("token_embd.weight", kind, 256, 32)
	add("output_norm.weight", gguf.F32, 32)
	for name, rows := range map[string]int{"attn_q": 32, "attn_k": 16, "attn_v": 16, "attn_output": 32, "ffn_gate": 32, "ffn_up": 32, "ffn_down": 32} {
		add("blk.0."+name+".weight", kind, rows, 32)
	}
	add("blk.0.attn_norm.weight", gguf.F32, 32)
	add("blk.0.ffn_norm.weight", gguf.F32, 32)
	var out bytes.Buffer
	if err := gguf.Write(&out, append(meta, more...), list); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// fromBytes is a source of a file in memory.
func fromBytes(data []byte) (*Source, error) {
	f, err := gguf.Parse(data)
	if err != nil {
		return nil, err
	}
	files, err := newGGUFFiles(f)
	if err != nil {
		return nil, err
	}
	open := func() (*weights.Set, error) {
		f, err := gguf.Parse(data)
		if err != nil {
			return nil, err
		}
		d, err := folder.New(f)
		if err != nil {
			return nil, err
		}
		return d.Set(), nil
	}
	return &Source{Name: "m", Dir: "m.gguf", Files: files, Open: open, encoded: true}, nil
}

// whole reads all that a source has, as a start does.
func whole(s *Source) error {
	cfg, gen, err := s.Config()
	if err != nil {
		return err
	}
	if err := s.Check(cfg, true); err != nil {
		return err
	}
	tok, _, err := s.Tokenizer()
	if err != nil {
		return err
	}
	s.StopIDs(cfg, gen, tok)
	set, err := s.Open()
	if err != nil {
		return err
	}
	defer set.Close()
	for _, x := range set.All() {
		rows, width := x.Rows()
		if n := rows * width; n <= 1<<16 {
			if err := x.Floats(make([]float32, n), 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestGGUFSource: what a file stands for.
func TestGGUFSource(t *testing.T) {
	for kind, want := range map[gguf.Type]tensor.DType{gguf.Q8_0: tensor.F32, gguf.BF16: tensor.BF16, gguf.F16: tensor.F32, gguf.F32: tensor.F32} {
		dir := t.TempDir()
		path := filepath.Join(dir, "small-v1.gguf")
		if err := os.WriteFile(path, smallGGUF(t, kind), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := whole(s); err != nil || s.Name != "small-v1" || s.Dir != path || !s.HasWeights() {
			t.Errorf("%s: %q, %q, %v", kind, s.Name, s.Dir, err)
		}
		cfg, gen, err := s.Config()
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []model.Part{model.Attention, model.DenseFFN, model.Embedding, model.Head} {
			if got := load.KeptType(cfg, part); got != want {
				t.Errorf("%s: part %v is loaded as %s, want %s", kind, part, got, want)
			}
		}
		if gen.Temperature != 0.5 {
			t.Errorf("%+v", gen)
		}
		tok, config, err := s.Tokenizer()
		if err != nil {
			t.Fatal(err)
		}
		if x, err := s.Template(tok, config); err != nil || x == nil {
			t.Errorf("template %v, %v", x, err)
		}
	}
}

// TestGGUFWithoutTokenizer: such a model can be planned, and the error says what it lacks.
func TestGGUFWithoutTokenizer(t *testing.T) {
	data := smallGGUF(t, gguf.BF16)
	data = bytes.Replace(data, []byte("tokenizer.ggml.model"), []byte("tokenizer.ggml.mopel"), 1)
	s, err := fromBytes(data)
	if err != nil {
		t.Fatal(err)
	}
	cfg, _, err := s.Config()
	if err == nil {
		err = s.Check(cfg, false)
	}
	if err != nil || s.Has("tokenizer.json") {
		t.Errorf("cannot be planned: %v", err)
	}
	if err := s.Check(cfg, true); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "m.gguf: the file has no tokenizer") {
		t.Errorf("%v", err)
	}
}

// FuzzGGUF: no bytes make a panic on the way from a file to a set of weights, a config and a
// tokenizer, or a tensor without values.
func FuzzGGUF(f *testing.F) {
	f.Add(smallGGUF(f, gguf.Q8_0))
	f.Add(smallGGUF(f, gguf.BF16, gguf.Pair{Key: "tokenizer.huggingface.json", Value: string(MadeTokenizer(256))}))
	scores := make([]float32, 256)
	f.Add(bytes.Replace(smallGGUF(f, gguf.F16, gguf.Pair{Key: "tokenizer.ggml.scores", Value: scores}), []byte("gpt2"), []byte("llam"), 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := fromBytes(slices.Clone(data))
		if err != nil {
			return
		}
		err = whole(s)
		if err != nil && strings.Contains(err.Error(), "values from row") {
			t.Errorf("a tensor has no values: %v", err)
		}
	})
}
