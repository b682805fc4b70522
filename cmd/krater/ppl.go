package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/local"
	"krater/actors/local/config"
	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
	"krater/kernels/tensor"
	"krater/scheduler/files"
	"krater/stages/drive"
	"krater/stages/ppl"
	"krater/stages/source"
	"krater/stages/text/tokenizer"
)

type pplCmd struct {
	source.Folder
	config.Options
	Text    string `help:"Text file; special tokens in it are recognised." type:"existingfile" required:"" placeholder:"FILE"`
	Window  int    `help:"Tokens per window. Each window runs separately, from position 0." default:"512"`
	Bytes   int64  `help:"Number of bytes of the text to use, without an incomplete character at the end; 0: all." default:"0"`
	Against string `help:"Also measure the distance (KL divergence, top-1 agreement) from the same model in this precision: ${enum}." enum:",bf16" default:"" placeholder:"bf16"`
	JSON    bool   `name:"json" help:"Print the result as JSON."`
}

// textMaxBytes bounds the text of a measurement.
const textMaxBytes = 1 << 30

// Run implements the command.
func (c *pplCmd) Run(e *console.Env) error {
	if c.Window < 2 {
		return errors.New("--window: want 2 tokens or more")
	}
	text, err := c.read()
	if err != nil {
		return err
	}
	// Every position of a window is predicted in one step if possible, so a step has as many rows
	// of logits as tokens. Windows start empty: one sequence.
	c.PrefillChunk = c.Chunk(0)
	c.MaxSeqs, c.MaxBatchTokens = 1, min(c.Window, c.PrefillChunk)
	l := config.Case{LogitRows: c.MaxBatchTokens}
	if os.Getenv(cmdline.EnvName("kv-dtype")) == "" && !c.chosen(e, "kv-dtype") {
		l.KVType = tensor.F32 // the reference computes in float32 throughout
	}
	m, err := c.open(e, &c.Options, l)
	if err != nil {
		return err
	}
	defer m.close()
	tok, _, err := m.session.Source.Tokenizer()
	if err != nil {
		return err
	}
	ids := tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true})
	done := e.Tokens("ppl", len(ids))
	if c.Against != "" {
		return c.against(e, m, ids, done)
	}
	r, err := ppl.Measure(scorer{m.pipeline}, ids, c.Window, done)
	e.Shown().End()
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(e.Out).Encode(r)
	}
	_, err = fmt.Fprintf(e.Out, "perplexity %.4f over %d predictions (%d tokens in windows of %d, mean nll %.6f)\n",
		r.Perplexity, r.Predictions, r.Tokens, r.Window, r.MeanNLL)
	return err
}

// against measures how far the model is from itself in the precision of its files, with a float32
// KV cache.
func (c *pplCmd) against(e *console.Env, m *running, ids []int32, done func(int)) error {
	f := c.Options.AllIn(c.Against)
	reference, err := c.open(e, &f, config.Case{LogitRows: c.MaxBatchTokens, KVType: tensor.F32})
	if err != nil {
		return err
	}
	defer reference.close()
	r, err := ppl.Against(scorer{reference.pipeline}, scorer{m.pipeline}, ids, c.Window, done)
	e.Shown().End()
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(e.Out).Encode(r)
	}
	_, err = fmt.Fprintf(e.Out, "perplexity %.4f (%s: %.4f), KL divergence %.6f (largest %.4f), top-1 agreement %.4f, over %d predictions\n",
		r.Model.Perplexity, c.Against, r.Reference.Perplexity, r.MeanKL, r.MaxKL, r.Top1, r.Model.Predictions)
	return err
}

// running is a loaded model and its pipeline.
type running struct {
	session  *local.Model
	pipeline *actors.Pipeline
}

func (c *pplCmd) open(e *console.Env, f *config.Options, l config.Case) (*running, error) {
	src, err := source.Open(c.Model)
	if err != nil {
		return nil, err
	}
	s, err := local.Load(context.Background(), console.ForLoad(e, src, *f, l))
	if err != nil {
		return nil, err
	}
	if limit := s.Parts.Limits.Context; c.Window > limit {
		s.Close()
		return nil, fmt.Errorf("--window %d: the context is %d tokens", c.Window, limit)
	}
	p, err := s.Pipeline(zerolog.New(e.Err).Level(zerolog.WarnLevel))
	if err != nil {
		s.Close()
		return nil, err
	}
	return &running{s, p}, nil
}

func (r *running) close() {
	r.pipeline.Close()
	r.session.Close()
}

// chosen reports whether a flag was given on the command line or in the settings file.
func (c *pplCmd) chosen(e *console.Env, flag string) bool {
	for _, p := range e.Ctx.Path {
		if p.Flag != nil && p.Flag.Name == flag {
			return true
		}
	}
	return false
}

func (c *pplCmd) read() (string, error) {
	limit := int64(textMaxBytes)
	if c.Bytes > 0 {
		limit = min(limit, c.Bytes)
	}
	return readText(c.Text, limit)
}

// readText reads the start of a text file, at most limit bytes, without an incomplete last
// character.
func readText(path string, limit int64) (string, error) {
	f, err := files.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return "", err
	}
	// The cut may have split the last character.
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
