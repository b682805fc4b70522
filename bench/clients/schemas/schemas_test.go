// Package schemas holds the grammars of JSON schemas against an independent validator: documents that
// masks allow, chosen at random, must be valid. KRATER_SCHEMAS names a file with a JSON value per line,
// {"name": ..., "schema": ...}; KRATER_TIKTOKEN a tiktoken file, whose first 128K tokens are the
// vocabulary. KRATER_DOCUMENTS names a file for the documents, which compare.mjs reads.
package schemas

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"krater/stages/text/grammar"
	"krater/stages/text/grammar/schema"
)

const size = 128 << 10

var texts [][]byte

func vocabulary(t *testing.T) *grammar.Vocabulary {
	file, err := os.Open(os.Getenv("KRATER_TIKTOKEN"))
	if err != nil {
		t.Skip(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan() && len(texts) < size-1; {
		word, _, _ := strings.Cut(lines.Text(), " ")
		text, err := base64.StdEncoding.DecodeString(word)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	return grammar.NewVocabulary(size, func(id int32) []byte {
		if int(id) >= len(texts) {
			return nil
		}
		return texts[id]
	}, []int32{size - 1})
}

// spent is the processor time of the thread: the machine may be busy.
func spent() time.Duration {
	var now syscall.Timespec
	const threadCPU = 3 // CLOCK_THREAD_CPUTIME_ID
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, threadCPU, uintptr(unsafe.Pointer(&now)), 0)
	return time.Duration(now.Nano())
}

// document follows masks at random; "" if the document did not end. It adds the time of each mask.
func document(t *testing.T, g *grammar.Grammar, rng *rand.Rand, times *[]time.Duration) (string, error) {
	m := g.Matcher()
	var b strings.Builder
	for i := range 600 {
		began := spent()
		mask, err := m.Mask()
		*times = append(*times, spent()-began)
		if err != nil {
			return "", err
		}
		if mask[(size-1)/32]>>((size-1)%32)&1 == 1 {
			return b.String(), nil
		}
		var allowed, ends []int32
		for at, word := range mask {
			for bit := range int32(32) {
				if word>>bit&1 == 0 {
					continue
				}
				id := int32(at)*32 + bit
				allowed = append(allowed, id)
				if c := texts[id][0]; len(texts[id]) == 1 && (c == '"' || c == '}' || c == ']') {
					ends = append(ends, id)
				}
			}
		}
		if len(allowed) == 0 {
			t.Fatal("no token may follow ", b.String())
		}
		token := allowed[rng.IntN(len(allowed))]
		if len(ends) > 0 && rng.IntN(3) == 0 || len(ends) > 0 && i > 200 {
			token = ends[rng.IntN(len(ends))]
		}
		if err := m.Accept(token); err != nil {
			t.Fatal(err)
		}
		b.Write(texts[token])
	}
	return "", nil
}

// tally counts what the schemas gave.
type tally struct {
	compiles, masks                          []time.Duration
	read, refused, valid, unfinished, failed int
}

func TestDocuments(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	v := vocabulary(t)
	file, err := os.Open(os.Getenv("KRATER_SCHEMAS"))
	if err != nil {
		t.Skip(err)
	}
	defer file.Close()
	var out *os.File
	if name := os.Getenv("KRATER_DOCUMENTS"); name != "" {
		if out, err = os.Create(name); err != nil {
			t.Fatal(err)
		}
		defer out.Close()
	}
	var all tally
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	for rng := rand.New(rand.NewPCG(1, 2)); lines.Scan(); {
		var in struct {
			Name   string          `json:"name"`
			Schema json.RawMessage `json:"schema"`
		}
		if err := json.Unmarshal(lines.Bytes(), &in); err != nil {
			t.Fatal(err)
		}
		docs := all.documents(t, v, in.Name, in.Schema, rng)
		if out != nil && len(docs) > 0 {
			line, _ := json.Marshal(map[string]any{"name": in.Name, "schema": in.Schema, "documents": docs})
			fmt.Fprintf(out, "%s\n", line)
		}
	}
	t.Logf("%d schemas read, %d refused; %d documents valid, %d did not end, %d masks failed", all.read, all.refused, all.valid, all.unfinished, all.failed)
	t.Log("compile", spread(all.compiles), "mask", spread(all.masks))
}

// documents makes three documents of a schema and has them judged. It returns the valid ones.
func (all *tally) documents(t *testing.T, v *grammar.Vocabulary, name string, text json.RawMessage, rng *rand.Rand) (docs []string) {
	began := spent()
	rules := &grammar.Rules{}
	e, err := schema.Add(rules, text, schema.Options{})
	var g *grammar.Grammar
	if err == nil {
		g, err = grammar.New(rules, rules.Add(e), v)
	}
	all.compiles = append(all.compiles, spent()-began)
	if err != nil {
		all.refused++
		return nil
	}
	judge, err := validator(text)
	if err != nil {
		return nil // the validator does not take the schema
	}
	all.read++
	for range 3 {
		doc, err := document(t, g, rng, &all.masks)
		switch {
		case err != nil:
			all.failed++
			continue
		case doc == "":
			all.unfinished++
			continue
		}
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(doc))
		if err == nil {
			err = judge.Validate(value)
		}
		if err != nil {
			t.Errorf("%s: %s: %v", name, doc, err)
			continue
		}
		all.valid++
		docs = append(docs, doc)
	}
	return docs
}

func validator(text json.RawMessage) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("schema.json", doc); err != nil {
		return nil, err
	}
	return c.Compile("schema.json")
}

func spread(times []time.Duration) string {
	if len(times) == 0 {
		return "none"
	}
	slices.Sort(times)
	at := func(share float64) time.Duration { return times[int(float64(len(times)-1)*share)] }
	return fmt.Sprintf("%d times: median %v, 90 %% %v, 99 %% %v, longest %v", len(times), at(0.5), at(0.9), at(0.99), at(1))
}
