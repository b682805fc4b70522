package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// copyDir copies a folder's files into a folder of the test; change may give a
// file other contents, or nil to leave it out.
func copyDir(t testing.TB, dir string, change map[string]func([]byte) []byte) string {
	t.Helper()
	to := t.TempDir()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		from, err := filepath.Abs(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		edit := change[f.Name()]
		if edit == nil {
			if err := os.Symlink(from, filepath.Join(to, f.Name())); err != nil {
				t.Fatal(err)
			}
			continue
		}
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if data = edit(data); data == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(to, f.Name()), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// entry is a tensor in a safetensors header.
type entry struct {
	DType   string `json:"dtype"`
	Shape   []int  `json:"shape"`
	Offsets [2]int `json:"data_offsets"`
}

// editTensor changes the first four bytes of a tensor in a safetensors file.
func editTensor(t testing.TB, name string, change func(uint32) uint32) func([]byte) []byte {
	return func(file []byte) []byte {
		n := binary.LittleEndian.Uint64(file)
		var header map[string]json.RawMessage
		if err := json.Unmarshal(file[8:8+n], &header); err != nil {
			t.Fatal(err)
		}
		e := decode[entry](t, string(header[name]))
		at := file[8+int(n)+e.Offsets[0]:]
		binary.LittleEndian.PutUint32(at, change(binary.LittleEndian.Uint32(at)))
		return file
	}
}

var lastLine = regexp.MustCompile(`(?:^|\n)(\d+) passed, (\d+) failed\n$`)

// TestCompare: exit status 0 and 1, and the last line counts.
func TestCompare(t *testing.T) {
	larger := func(bits uint32) uint32 { return math.Float32bits(math.Float32frombits(bits) + 0.1) }
	another := func(id uint32) uint32 { return (id + 1) % 512 }
	for _, c := range []struct {
		name, dir, file, tensor string
		change                  func(uint32) uint32
		flags                   string // of a changed golden: what fails
	}{
		{"tiny model", goldenDir, "", "", nil, ""},
		{"tiny model in groups and chunks", goldenDir, "", "", nil, "--layer-groups 2 --chunk 7 --batch 3"},
		{"trained model", modelDir, "", "", nil, ""},
		{"other logits", goldenDir, "goldens.safetensors", "p96.logits_last", larger, "p96.logits_last"},
		{"another greedy id", goldenDir, "goldens.safetensors", "p96.greedy_ids", another, "p96.greedy_ids"},
		{"another hidden state", goldenDir, "goldens.safetensors", "p17.hidden", larger, "p17.hidden"},
		{"trained model, other logits", modelDir, "golden.safetensors", "logits.1", larger, "1.logits_last"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, good := c.dir, c.tensor == ""
			args := []string{"compare", "--model", c.dir}
			if good {
				args = append(args, strings.Fields(c.flags)...)
			} else {
				dir = copyDir(t, c.dir, map[string]func([]byte) []byte{c.file: editTensor(t, c.tensor, c.change)})
			}
			o := krater(t, "", append(args, "--golden", dir)...)
			counts := lastLine.FindStringSubmatch(o.out)
			if counts == nil || counts[1] == "0" {
				t.Fatalf("the last line counts nothing:\n%s%s", o.out, o.err)
			}
			if (o.status == 0) != good || (counts[2] == "0") != good || o.status > 1 {
				t.Errorf("status %d, %s failed\n%s", o.status, counts[2], o.out)
			}
			if !good && !failingLine(o.out, c.flags) {
				t.Errorf("%s is not among what failed:\n%s", c.flags, o.out)
			}
		})
	}
	o := krater(t, "", "compare", "--model", goldenDir, "--golden", goldenDir, "--json")
	if o.status != 0 || len(decode[map[string]any](t, o.out)) == 0 {
		t.Errorf("--json: status %d, %s", o.status, o.out)
	}
	refuses(t, 1, []string{"compare", "--model", goldenDir, "--golden", t.TempDir()}, "no golden vectors")
	refuses(t, 1, []string{"compare", "--model", goldenDir, "--golden", modelDir}, "vocabulary of 512")
}

// failingLine reports whether a line about a vector says that it failed.
func failingLine(report, name string) bool {
	for line := range strings.Lines(report) {
		if strings.Contains(line, name) && strings.Contains(strings.ToLower(line), "fail") {
			return true
		}
	}
	return false
}

type perplexity struct {
	Perplexity  float64
	Predictions int
	Tokens      int
}

func measure(t testing.TB, flags ...string) perplexity {
	t.Helper()
	args := append([]string{"ppl", "--json", "--text", modelDir + "/heldout.txt", "--bytes", "1500", "--window", "128"}, flags...)
	return decode[perplexity](t, answers(t, "", args...))
}

// TestPerplexity: no setting changes the mathematics.
func TestPerplexity(t *testing.T) {
	want := measure(t)
	windows := (want.Tokens + 127) / 128
	if want.Tokens < 200 || want.Predictions != want.Tokens-windows || want.Perplexity < 10 || want.Perplexity > 150 {
		t.Errorf("%+v", want)
	}
	for _, c := range []struct {
		flags     string
		tolerance float64 // relative
	}{
		{"--threads 1 --inline-below 1h", 1e-3}, {"--layer-groups 7 --micro-batches 2", 1e-3}, {"--expert-pools 3 --inline-below=-1s", 1e-3},
		{"--prefill-chunk 7 --layer-groups 2 --expert-pools 2", 1e-3}, {"--block-tokens 5 --kv-dtype f32", 1e-3}, {"--kv-dtype bf16", 1e-2},
	} {
		got := measure(t, strings.Fields(c.flags)...)
		if off := math.Abs(got.Perplexity/want.Perplexity - 1); off > c.tolerance || got.Predictions != want.Predictions {
			t.Errorf("%s: %+v, without %+v", c.flags, got, want)
		}
	}
	text := answers(t, "", "ppl", "--text", modelDir+"/heldout.txt", "--bytes", "1500", "--window", "128")
	if !strings.HasPrefix(text, fmt.Sprintf("perplexity %.4f over %d predictions", want.Perplexity, want.Predictions)) {
		t.Errorf("%q, as JSON %+v", text, want)
	}
	// Bytes are cut where a character ends.
	odd := write(t, "odd.txt", "A lighthouse \U0001F600")
	cut := decode[perplexity](t, answers(t, "", "ppl", "--json", "--text", odd, "--bytes", "15"))
	whole := decode[perplexity](t, answers(t, "", "ppl", "--json", "--text", write(t, "cut.txt", "A lighthouse ")))
	if cut != whole {
		t.Errorf("%+v, without the half character %+v", cut, whole)
	}
	refuses(t, 1, []string{"ppl", "--text", write(t, "empty.txt", "")}, "token")
}

// TestAnyCutGivesTheSameAnswer: neither the size of prefill chunks
// nor the shape of the pipeline changes an answer.
func TestAnyCutGivesTheSameAnswer(t *testing.T) {
	file := write(t, "long", "Tell me about this: "+strings.Repeat("the ship passed the lighthouse at the harbour, and ", 8)+"what is a lighthouse?")
	ask := func(flags ...string) []int32 {
		args := append([]string{"run", "--ids", "--ignore-eos", "--max-tokens", "24", "--file", file}, flags...)
		return decode[[]int32](t, answers(t, "", args...))
	}
	want := ask()
	if len(want) != 24 {
		t.Fatalf("%v", want)
	}
	for _, flags := range []string{
		"--prefill-chunk 1", "--prefill-chunk 7", "--prefill-chunk 32", "--prefill-chunk 1000", "--max-batch-tokens 3",
		"--layer-groups 2", "--layer-groups 7 --micro-batches 3", "--expert-pools 4 --inline-below=-1s", "--threads 1", "--block-tokens 3 --kv-dtype f32",
	} {
		if got := ask(strings.Fields(flags)...); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", flags, got, want)
		}
	}
}
