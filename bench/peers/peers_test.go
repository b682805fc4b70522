package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// reader takes a GGUF file apart again.
type reader struct {
	t *testing.T
	b []byte
}

func (r *reader) u32() uint32 {
	v := binary.LittleEndian.Uint32(r.b)
	r.b = r.b[4:]
	return v
}

func (r *reader) u64() uint64 {
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

func (r *reader) text() string {
	n := r.u64()
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

func (r *reader) value() any {
	switch kind := r.u32(); kind {
	case typeString:
		return r.text()
	case typeU32, typeF32:
		return r.u32()
	case typeBool:
		v := r.b[0] != 0
		r.b = r.b[1:]
		return v
	default:
		r.t.Fatalf("a value of type %d", kind)
		return nil
	}
}

// TestWrite reads a file back: header, keys, tensors where the table says, blocks with the scales
// they should have.
func TestWrite(t *testing.T) {
	f := &file{}
	f.add("norm", f32, 5)
	f.add("a", q40, 64, 3)
	f.add("b", q4k, 256)
	f.add("c", q80, 32)
	f.add("d", q50, 32)
	f.meta = []pair{{"name", "x"}, {"count", uint32(7)}, {"flag", true}, {"rate", float32(1)}}
	var out bytes.Buffer
	if err := f.write(&out); err != nil {
		t.Fatal(err)
	}
	r := &reader{t, out.Bytes()}
	if r.u32() != magic || r.u32() != version || r.u64() != 5 || r.u64() != 4 {
		t.Fatal("the header is wrong")
	}
	for _, p := range f.meta {
		key, v := r.text(), r.value()
		if _, float := p.value.(float32); key != p.key || !float && v != p.value {
			t.Errorf("%s = %v, want %+v", key, v, p)
		}
	}
	for _, e := range f.tensors {
		name, dims := r.text(), r.u32()
		for range dims {
			r.u64()
		}
		if id, off := r.u32(), r.u64(); name != e.name || int(dims) != len(e.dims) || uint64(id) != e.kind.id || off != e.off || off%alignment != 0 {
			t.Errorf("%s: %d dimensions, type %d, at %d", name, dims, id, off)
		}
	}
	data := out.Bytes()[aligned(uint64(out.Len()-len(r.b))):]
	if got := uint64(len(data)); got != aligned(f.end()) {
		t.Errorf("%d bytes of tensors, want %d", got, aligned(f.end()))
	}
	for i, e := range f.tensors[1:] {
		for at := e.off; at < e.off+e.size(); at += e.kind.bytes {
			// Exponents of float16 between 2^-13 and 2^-7.
			if h := binary.LittleEndian.Uint16(data[at:]); h>>10 < 2 || h>>10 > 8 {
				t.Errorf("tensor %d: a scale of %#x", i, h)
			}
		}
	}
}

// TestLite holds the sizes against those of the models measured in the past.
func TestLite(t *testing.T) {
	for kind, want := range map[string][2]float64{"q4_0": {8.685, 1.3100}, "q4_k": {9.302, 1.3832}} {
		f, err := lite(kind, liteMoE)
		if err != nil {
			t.Fatal(err)
		}
		if all, token := float64(f.bytes())/1e9, float64(f.tokenBytes())/1e9; all-want[0] > 5e-4 || want[0]-all > 5e-4 || token-want[1] > 5e-5 || want[1]-token > 5e-5 {
			t.Errorf("%s: %.4f GB, %.5f a token, want %v", kind, all, token, want)
		}
	}
	whole, err := lite("q4_0", liteMoE)
	if err != nil {
		t.Fatal(err)
	}
	if few, err := lite("q4_0", 16); err != nil || few.bytes() > whole.bytes()/3 || few.tokenBytes() >= whole.tokenBytes() || few.tokenBytes() < whole.tokenBytes()-20e6 {
		t.Errorf("16 experts: %v, %d of %d bytes a token", err, few.tokenBytes(), whole.tokenBytes())
	}
	for _, bad := range [][]string{{"gguf"}, {"gguf", "--out", "x", "--type", "q9"}, {"gguf", "--out", "x", "--experts", "5"}, {}, {"nonsense"}, {"join"}} {
		if err := run(bad, &bytes.Buffer{}); err == nil {
			t.Errorf("%q passed", bad)
		}
	}
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestJoin: decode is compared over the same number of tokens, without the peer's first samples,
// and only what both measured.
func TestJoin(t *testing.T) {
	theirs := write(t, "theirs.json", `[
		{"n_prompt": 0, "n_gen": 2, "n_depth": 0, "n_threads": 2, "model_type": "deepseek2 Q4_0", "samples_ts": [1, 20, 24, 25]},
		{"n_prompt": 0, "n_gen": 2, "n_depth": 0, "n_threads": 1, "samples_ts": [10, 10]},
		{"n_prompt": 0, "n_gen": 2, "n_depth": 512, "n_threads": 2, "samples_ts": [1000]},
		{"n_prompt": 512, "n_gen": 0, "n_depth": 0, "n_threads": 2, "samples_ts": [30, 40]}]`)
	ours := write(t, "ours.json", `{"model": "lite", "precision": "int4", "threads": 2, "steps_ms": [30, 50, 20, 30, 99], "read_gbps": 35, "decode_ratio": 0.9,
		"regime": "one core", "prefill": [{"tokens": 512, "samples_tok_s": [80, 60]}, {"tokens": 2048, "samples_tok_s": [70]}]}`)
	var out bytes.Buffer
	if err := run([]string{"join", "--json", "--ours", ours, "--theirs", theirs}, &out); err != nil {
		t.Fatal(err)
	}
	var j joined
	if err := json.Unmarshal(out.Bytes(), &j); err != nil {
		t.Fatal(err)
	}
	want := []comparison{
		{"decode", 2, speed{2, 25, 40, 40}, speed{3, 24, 25, 25}, 25. / 24, 1.6, 1.6},
		{"prefill 512", 2, speed{2, 60, 80, 80}, speed{2, 30, 40, 40}, 2, 2, 2},
	}
	if len(j.Tests) != 2 || j.Tests[0] != want[0] || j.Tests[1] != want[1] || j.Peer != "deepseek2 Q4_0" || j.Precision != "int4" {
		t.Errorf("%+v", j)
	}
	out.Reset()
	if err := run([]string{"join", "--ours", ours, "--theirs", theirs}, &out); err != nil || !strings.Contains(out.String(), "prefill 512") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if err := run([]string{"join", "--ours", write(t, "none.json", `{"threads": 7, "steps_ms": [1, 1]}`), "--theirs", theirs}, &out); err == nil {
		t.Error("reports without a common test were joined")
	}
	if err := run([]string{"join", "--ours", theirs, "--theirs", theirs}, &out); err == nil {
		t.Error("a report of the other program passed as ours")
	}
	out.Reset()
	if err := run([]string{"regime", "--threads", "1"}, &out); err != nil || !strings.Contains(out.String(), "GOP/s") {
		t.Errorf("%v %s", err, out.String())
	}
}
