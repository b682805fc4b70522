package main

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/rs/zerolog"

	"krater/actors/local"
	"krater/actors/local/config"
	"krater/bench/plot"
	"krater/cmd/krater/benches"
	"krater/cmd/krater/choices"
	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/scheduler/heat"
	"krater/stages/drive"
	"krater/stages/source"
	"krater/stages/text/tokenizer"
)

type heatmapCmd struct {
	source.Folder
	config.Options
	benches.Output
	Text   string   `help:"Text to run the model on; special tokens in it are recognised. Default, unless --load names maps: the model's own heldout.txt." type:"existingfile" placeholder:"FILE"`
	Tokens int      `help:"Number of tokens of the text to use; 0: all." default:"0"`
	Window int      `help:"Tokens per window. Each window runs separately, from position 0." default:"512"`
	Load   []string `help:"Heat maps to start from, added up. Without --text the model then does not run." type:"existingfile" placeholder:"FILE"`
	Keep   float64  `help:"Weight of the maps of --load next to the text: 0.5 counts them half." default:"1"`
	choices.Flags
	Record string `help:"Write every choice of the routers into a file, for --replay." type:"path" placeholder:"FILE"`
	Save   string `help:"Write the map into a file, for krater serve --heat-file." type:"path" placeholder:"FILE"`
}

// heldoutText is the text that a model's folder may contain for this command.
const heldoutText = "heldout.txt"

// Run implements the command.
func (c *heatmapCmd) Run(e *console.Env) error {
	if c.Replay != "" {
		return c.Flags.Run(e, c.JSON)
	}
	if err := c.check(); err != nil {
		return err
	}
	src, err := source.Open(c.Model)
	if err != nil {
		return err
	}
	cfg, _, err := src.Config()
	if err != nil {
		return err
	}
	m, err := src.NewHeat(cfg)
	if err != nil {
		return err
	}
	for _, path := range c.Load {
		more, err := heat.Load(path)
		if err == nil {
			err = m.Merge(more)
		}
		if err != nil {
			return fmt.Errorf("--load %s: %w", path, err)
		}
	}
	if err := m.Decay(c.Keep); err != nil {
		return fmt.Errorf("--keep: %w", err)
	}
	if c.Text != "" || len(c.Load) == 0 {
		if err := c.warmUp(e, src, m); err != nil {
			return err
		}
	}
	if c.Save != "" {
		if err := m.Save(c.Save); err != nil {
			return fmt.Errorf("--save: %w", err)
		}
	}
	return c.show(e, choices.HeatReport{Model: src.Name, Report: m.Report()}, m)
}

func (c *heatmapCmd) check() error {
	switch {
	case c.Window < 1:
		return errors.New("--window: want 1 token or more")
	case c.Tokens < 0:
		return errors.New("--tokens: want 0 or more")
	}
	return c.Output.Check()
}

// warmUp adds the counts of a text to m.
func (c *heatmapCmd) warmUp(e *console.Env, src *source.Source, m *heat.Map) (failed error) {
	text, err := c.text(src)
	if err != nil {
		return err
	}
	tok, _, err := src.Tokenizer()
	if err != nil {
		return err
	}
	ids := tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true})
	if c.Tokens > 0 && c.Tokens < len(ids) {
		ids = ids[:c.Tokens]
	}
	if len(ids) == 0 {
		return errors.New("--text: the text is empty")
	}
	// Windows start empty: one sequence, whose rows fit into one step if possible.
	f := c.Options
	f.PrefillChunk = f.Chunk(0)
	f.MaxSeqs, f.MaxBatchTokens = 1, min(c.Window, f.PrefillChunk)
	s, err := local.Load(context.Background(), console.ForLoad(e, src, f, config.Case{}))
	if err != nil {
		return err
	}
	defer s.Close()
	if limit := s.Parts.Limits.Context; c.Window > limit {
		return fmt.Errorf("--window %d: the context is %d tokens", c.Window, limit)
	}
	s.HeatSample = 1
	if c.Record != "" {
		file, err := choices.Create(c.Record, m, math.MaxInt64)
		if err != nil {
			return fmt.Errorf("--record: %w", err)
		}
		defer func() { failed = errors.Join(failed, file.Close()) }()
		s.Record = file.Add
	}
	p, err := s.Pipeline(zerolog.New(e.Err).Level(zerolog.WarnLevel))
	if err != nil {
		return err
	}
	defer p.Close()
	defer e.Shown().End()
	if err := windows(p, ids, c.Window, e.Tokens("heatmap", len(ids))); err != nil {
		return err
	}
	return m.Merge(p.Heat(m.Identity))
}

// windows runs each window of a text separately, and reports progress.
func windows(r drive.Runner, ids []int32, window int, done func(tokens int)) error {
	for from := 0; from < len(ids); from += window {
		part := ids[from:min(from+window, len(ids))]
		if err := drive.Run(r, []*drive.Sequence{{Prompt: part}}, drive.Options{}); err != nil {
			return err
		}
		done(from + len(part))
	}
	return nil
}

// text returns the text to run the model on.
func (c *heatmapCmd) text(src *source.Source) (string, error) {
	if c.Text != "" {
		return readText(c.Text, textMaxBytes)
	}
	data, err := src.Read(heldoutText, true)
	if err == nil && data == nil {
		err = fmt.Errorf("model %s has no %s: name a text with --text", src.Name, heldoutText)
	}
	return string(data), err
}

// show prints and draws a map.
func (c *heatmapCmd) show(e *console.Env, r choices.HeatReport, m *heat.Map) error {
	if c.Plot != "" {
		if err := plot.SaveFigures(c.Plot, r.Figures(m)...); err != nil {
			return err
		}
	}
	if c.JSON {
		return console.WriteJSON(e.Out, r)
	}
	return r.Text(term.Paint(e.Out, console.TableRules...))
}
