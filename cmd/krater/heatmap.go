package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/rs/zerolog"

	"krater/actors/local"
	"krater/actors/local/config"
	"krater/bench/plot"
	"krater/cmd/krater/benches"
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
	Save   string   `help:"Write the map into a file, for krater serve --heat-file." type:"path" placeholder:"FILE"`
}

// heldoutText is the text that a model's folder may contain for this command.
const heldoutText = "heldout.txt"

// Run implements the command.
func (c *heatmapCmd) Run(e *console.Env) error {
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
	return c.show(e, heatReport{Model: src.Name, Report: m.Report()}, m)
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
func (c *heatmapCmd) warmUp(e *console.Env, src *source.Source, m *heat.Map) error {
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

// heatReport is a map and what it was counted on.
type heatReport struct {
	Model string `json:"model"`
	heat.Report
}

// show prints and draws a map.
func (c *heatmapCmd) show(e *console.Env, r heatReport, m *heat.Map) error {
	if c.Plot != "" {
		if err := plot.SaveFigures(c.Plot, r.figures(m)...); err != nil {
			return err
		}
	}
	if c.JSON {
		return console.WriteJSON(e.Out, r)
	}
	return r.text(term.Paint(e.Out, console.TableRules...))
}

// text prints the skew of every layer as a table.
func (r *heatReport) text(w io.Writer) error {
	b := &strings.Builder{}
	fmt.Fprintf(b, "%s: %d tokens, %d layers of %d experts, %d per token\n\n", r.Model, r.Seen, len(r.Layers), r.Experts, r.TopK)
	fmt.Fprintf(b, "%7s  %29s  %9s  %17s\n", "", "% of rows at the hottest", "", "entropy")
	fmt.Fprintf(b, "%7s  %5s  %6s  %6s  %6s  %9s  %5s  %10s\n", "layer", "one", "10 %", "25 %", "50 %", "used", "bits", "of even's")
	row := func(name string, s heat.Skew) {
		fmt.Fprintf(b, "%7s  %5.1f  %6.1f  %6.1f  %6.1f  %9s  %5.2f  %10.3f\n", name,
			100*s.Hottest, 100*s.Share10, 100*s.Share25, 100*s.Share50, fmt.Sprintf("%d/%d", s.Used, s.Experts), s.Entropy, s.Evenness)
	}
	for _, l := range r.Layers {
		row(fmt.Sprint(l.Layer), l.Skew)
	}
	row("all", r.Whole)
	if len(r.Layers) > 1 {
		fmt.Fprintf(b, "\nall: the hottest of the %d experts of all layers; every layer has the same weight\n", r.Whole.Experts)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// curvePoints is the number of points drawn of the curve of all experts.
const curvePoints = 400

// figures draws a map: layers by experts, and the skew of each layer.
func (r *heatReport) figures(m *heat.Map) []plot.Figure {
	of := fmt.Sprintf("%s, %d tokens", r.Model, r.Seen)
	h := &plot.Heat{Title: "Rows at each expert, as a multiple of an even share: " + of, X: "expert", Y: "layer"}
	c := &plot.Curves{Title: "Share of rows at the hottest experts: " + of, X: "hottest experts, % of all", Y: "rows at them, % of all"}
	for _, l := range r.Layers {
		h.Rows = append(h.Rows, fmt.Sprint(l.Layer))
		var sum uint64
		for _, n := range l.Counts {
			sum += n
		}
		values := make([]float64, len(l.Counts))
		for e, n := range l.Counts {
			values[e] = float64(n) * float64(len(l.Counts)) / float64(max(1, sum))
		}
		h.Values = append(h.Values, values)
		c.Lines = append(c.Lines, curve(fmt.Sprintf("layer %d", l.Layer), m.Curve(l.Layer), l.Experts))
	}
	if len(r.Layers) > 1 {
		c.Main = curve("all layers", m.Whole(), curvePoints)
	}
	return []plot.Figure{h, c}
}

// curve returns the curve of a map in percent, with the given number of points after the first.
func curve(name string, c heat.Curve, points int) plot.Curve {
	out := plot.Curve{Name: name, Y: make([]float64, points+1)}
	for i := range out.Y {
		out.Y[i] = 100 * c.Share(float64(i)/float64(points))
	}
	return out
}
