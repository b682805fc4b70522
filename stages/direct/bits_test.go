package direct_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"krater/kernels/cpu/level"
	"krater/kernels/tensor"
	"krater/stages/compare"
	"krater/stages/compare/goldens"
	"krater/stages/drive"
	"krater/stages/load"
)

var update = flag.Bool("update", false, "write testdata/bits.txt anew for the CPU levels of this machine; the other levels keep their lines")

const bitsFile = "testdata/bits.txt"

// recordedKinds are the precisions of weights and cache that TestBits records. A model
// without experts has no lines for those of experts alone. The short suite runs those
// marked so on the pure level, which is slow, and each of the others on one of two levels.
var recordedKinds = []struct {
	name      string
	precision load.Precision
	kv        tensor.DType
	short     bool
}{
	{"bf16/kv-f32", load.Precision{}, tensor.F32, true},
	{"bf16/kv-bf16", load.Precision{}, tensor.BF16, false},
	{"bf16/kv-fp8", load.Precision{}, tensor.F8E4M3, false},
	{"bf16/kv-int8", load.Precision{}, tensor.I8, false},
	{"int8-experts/kv-f32", load.Precision{Experts: tensor.INT8.By(128)}, tensor.F32, false},
	{"int4-experts/kv-f32", load.Precision{Experts: tensor.INT4.By(32)}, tensor.F32, false},
	{"int8/kv-bf16", load.Precision{Experts: tensor.INT8.By(64), Attention: tensor.INT8.By(64), KVB: tensor.INT8.By(64), Shared: tensor.INT8.By(64), Dense: tensor.INT8.By(64), Head: tensor.INT8.By(64)}, tensor.BF16, false},
	{"mixed/kv-int8", load.Precision{Experts: tensor.INT4.By(64), Attention: tensor.INT8.By(64), Shared: tensor.INT8.By(64), Dense: tensor.INT8.By(64), Head: tensor.INT4.By(64)}, tensor.I8, true},
}

// recordedTokens is how many tokens follow each prompt.
const recordedTokens = 24

// TestBits holds the CPU to the bits that it gave when testdata/bits.txt was written: the
// logits of every position and the greedy tokens of every golden and of the default
// model. A line has the level, the model, what weights and cache are kept in, and the
// sha256 of logits and of tokens, both little-endian. Levels add in other orders, so each
// has lines of its own. After a change that is meant to change bits:
//
//	go test ./stages/direct -run TestBits -update
func TestBits(t *testing.T) {
	if raceEnabled {
		t.Skip("run without the race detector")
	}
	data, err := os.ReadFile(bitsFile)
	if err != nil && !*update {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 5 && !strings.HasPrefix(line, "#") {
			want[strings.Join(f[:3], " ")] = f[3] + " " + f[4]
		}
	}
	levels := level.Available()
	for i, l := range levels {
		if l == level.Pure && len(levels) > 1 && testing.Short() {
			continue // CI runs this level as a build without assembly
		}
		at := runtime.GOARCH + "-" + l.String()
		t.Run(at, func(t *testing.T) {
			recorded := func(key string) bool { return strings.HasPrefix(key, at+" ") }
			if !*update && !slices.ContainsFunc(slices.Collect(maps.Keys(want)), recorded) {
				t.Skipf("%s has no lines of %s", bitsFile, at)
			}
			got := map[string]string{}
			for golden, name := range append(goldens.Names(t), "krater-tiny") {
				hashes(t, l, golden+i, at+" "+name, folder(name), got)
			}
			if *update {
				maps.DeleteFunc(want, func(key, _ string) bool { return recorded(key) })
				maps.Copy(want, got)
				return
			}
			for key, have := range got {
				if have != want[key] {
					t.Errorf("%s: sha256 of logits and tokens\n%s, recorded are\n%s", key, have, want[key])
				}
			}
			for key := range want {
				if recorded(key) && got[key] == "" && !testing.Short() {
					t.Errorf("%s is recorded and was not run", key)
				}
			}
		})
	}
	if *update {
		writeBits(t, want)
	}
}

// writeBits writes the file, sorted.
func writeBits(t *testing.T, lines map[string]string) {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("# What TestBits holds the CPU to: level, model, weights/cache, sha256 of logits, sha256 of tokens.\n")
	for _, key := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintln(&b, key, lines[key])
	}
	if err := os.WriteFile(bitsFile, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// hashes adds the lines of one model at one level to got. The short suite leaves out every other one of the
// recorded kinds: the first or the second, as chosen is even or odd.
func hashes(t *testing.T, l level.Level, chosen int, key, dir string, got map[string]string) {
	t.Helper()
	g, err := compare.ReadGolden(dir)
	if err != nil {
		t.Fatal(err)
	}
	dev := processorAt(t, 2, l)
	cfg, _ := files(t, dir, "config.json")
	for i, k := range recordedKinds {
		if testing.Short() && (l == level.Pure && !k.short || l != level.Pure && (chosen+i)%2 != 0) {
			continue
		}
		o := load.Options{Limits: limits, KVType: k.kv, Precision: k.precision}
		if cfg.MoE.Experts == 0 {
			o.Precision.Experts = tensor.Format{}
			if !o.Precision.Integer() && k.precision.Integer() {
				continue
			}
		}
		if !o.Precision.Experts.Zero() {
			o = integers(t, dev, dir, o)
		}
		m := open(t, dev, dir, "config.json", o)
		rows := make([][]float32, len(g.Prompts))
		seqs := make([]*drive.Sequence, len(g.Prompts))
		for i := range seqs {
			seqs[i] = &drive.Sequence{Prompt: g.Prompts[i].IDs, New: recordedTokens, All: true, See: func(_ int, x []float32) {
				rows[i] = append(rows[i], x...)
			}}
		}
		if err := drive.Run(m.model, seqs, drive.Options{}); err != nil {
			t.Fatal(err)
		}
		logits, tokens := sha256.New(), sha256.New()
		for i := range seqs {
			if err := binary.Write(logits, binary.LittleEndian, rows[i]); err != nil {
				t.Fatal(err)
			}
			if err := binary.Write(tokens, binary.LittleEndian, seqs[i].Out); err != nil {
				t.Fatal(err)
			}
		}
		got[key+" "+k.name] = fmt.Sprintf("%x %x", logits.Sum(nil), tokens.Sum(nil))
	}
}
