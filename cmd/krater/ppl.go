package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"

	"github.com/rs/zerolog"

	"krater/kernels/tensor"
	"krater/stages/drive"
	"krater/stages/ppl"
	"krater/stages/text/tokenizer"
)

type pplCmd struct {
	modelFlag
	engineFlags
	Text   string `help:"Text file; special tokens in it are recognised." type:"existingfile" required:"" placeholder:"FILE"`
	Window int    `help:"Tokens of a window; each runs on its own from position 0." default:"512"`
	Bytes  int64  `help:"Use only this many bytes of the text, an incomplete character at the end dropped; 0: all." default:"0"`
	JSON   bool   `name:"json" help:"Print the result as JSON."`
}

// textMaxBytes bounds the text of a measurement.
const textMaxBytes = 1 << 30

// Run implements the command.
func (c *pplCmd) Run(e *env) error {
	if c.Window < 2 {
		return errors.New("--window: a window needs two tokens or more")
	}
	text, err := c.read()
	if err != nil {
		return err
	}
	// Every position of a window is predicted in one step where it fits, so a step
	// has as many rows of logits as tokens. Windows start empty: one sequence.
	c.MaxSeqs, c.MaxBatchTokens = 1, min(c.Window, c.PrefillChunk)
	l := limits{logitRows: c.MaxBatchTokens}
	if os.Getenv(envName("kv-dtype")) == "" && !c.chosen(e, "kv-dtype") {
		l.kv = tensor.F32 // the reference computes in float32 throughout
	}
	s, err := newSession(e, c.Model, &c.engineFlags, l)
	if err != nil {
		return err
	}
	defer s.Close()
	if limit := s.parts.Limits.Context; c.Window > limit {
		return fmt.Errorf("--window %d: the context is %d tokens", c.Window, limit)
	}
	tok, _, err := s.src.tokenizer()
	if err != nil {
		return err
	}
	p, err := s.pipeline(&c.engineFlags, zerolog.New(e.err).Level(zerolog.WarnLevel))
	if err != nil {
		return err
	}
	defer p.Close()
	ids := tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true})
	r, err := ppl.Measure(scorer{p}, ids, c.Window, func(done int) {
		fmt.Fprintf(e.err, "\r%d of %d tokens", done, len(ids))
	})
	fmt.Fprintln(e.err)
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(e.out).Encode(r)
	}
	_, err = fmt.Fprintf(e.out, "perplexity %.4f over %d predictions (%d tokens in windows of %d, mean nll %.6f)\n",
		r.Perplexity, r.Predictions, r.Tokens, r.Window, r.MeanNLL)
	return err
}

// chosen reports whether a flag was given on the command line or in the file.
func (c *pplCmd) chosen(e *env, flag string) bool {
	for _, p := range e.ctx.Path {
		if p.Flag != nil && p.Flag.Name == flag {
			return true
		}
	}
	return false
}

func (c *pplCmd) read() (string, error) {
	f, err := os.Open(c.Text)
	if err != nil {
		return "", err
	}
	defer f.Close()
	limit := int64(textMaxBytes)
	if c.Bytes > 0 {
		limit = min(limit, c.Bytes)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return "", err
	}
	// A cut may have split the last character.
	for i := 1; i < utf8.UTFMax && i <= len(data); i++ {
		if b := data[len(data)-i]; utf8.RuneStart(b) {
			if !utf8.FullRune(data[len(data)-i:]) {
				data = data[:len(data)-i]
			}
			break
		}
	}
	return string(data), nil
}

// scorer runs texts through a runner.
type scorer struct{ r drive.Runner }

// Score implements ppl.Scorer.
func (s scorer) Score(ids []int32, see func(pos int, logits []float32)) error {
	return drive.Run(s.r, []*drive.Sequence{{Prompt: ids, All: true, See: see}}, drive.Options{})
}
