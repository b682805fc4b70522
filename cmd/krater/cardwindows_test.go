//go:build cuda

package main

import (
	"slices"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/cuda"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/load"
)

// walked takes batches through a model on a GPU part by part: all pieces of a batch through the
// layers of one before any goes on.
type walked struct {
	*direct.Model
	s     device.Stream
	st    *stages.State
	parts []int
	most  int // pieces of a batch
}

func (w *walked) Step(b *stages.Step, _ stages.Probe, read func(*stages.State) error) error {
	if err := w.st.Fill(w.s, b); err != nil {
		return err
	}
	w.most = max(w.most, w.st.Windows())
	w.Parts.Embed.Run(w.s, w.st, nil)
	for _, g := range w.Parts.Groups {
		if w.st.Repeated() {
			break
		}
		for at, ok := g.Walk(w.st, w.parts), true; ok; ok = g.Next(w.s, w.st, &at) {
			if g.Attend(w.s, w.st, at.Layer, nil); g.MoE(at.Layer) {
				g.Mix(w.s, w.st, at.Layer, nil)
			}
		}
	}
	w.Parts.Head.Run(w.s, w.st, nil)
	if err := w.s.Synchronize(); err != nil {
		return err
	}
	return read(w.st)
}

// inPieces is latentModel on a GPU whose layers see at most window rows at once; 0: all.
func inPieces(t *testing.T, window int, parts []int) *walked {
	t.Helper()
	host, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	c := cardFor(t, cuda.Options{})
	l, err := latentModel(t).LoadCard(c, host, load.Options{
		Limits: stages.Limits{Tokens: 257, Window: window, Seqs: 9, Blocks: 64, BlockTokens: 16}, KVType: tensor.BF16,
		Precision: cardPrecisions["int4 g128"],
	}, tensor.Format{}, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	d, err := direct.New(c, l.Parts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	w := &walked{Model: d, parts: parts}
	s, err := c.Accelerator().NewQueueStream(0)
	if err != nil {
		t.Fatal(err)
	}
	w.s = s
	t.Cleanup(s.Close)
	if w.st, err = stages.NewState(c, l.Parts.Config, l.Parts.Limits); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.st.Close)
	if err := s.Reserve(c.Accelerator().ScratchBytes(load.StepSizes(l.Parts.Config, l.Parts.Limits))); err != nil {
		t.Fatal(err)
	}
	return w
}

// TestPiecesOnCard: a batch that layers take in pieces has the bits of those pieces one
// after the other, whether they pass all layers or the parts of a model in turn.
func TestPiecesOnCard(t *testing.T) {
	for _, window := range []int{7, 70} {
		if testing.Short() && window == 70 {
			continue // TestMixedPiecesOnCard has pieces for the kernels of many rows
		}
		prompt := randomTokens(3*window-2, window)
		want := runOn(t, inPieces(t, 0, nil), prompt, 3, window)
		for name, parts := range map[string][]int{"one part": nil, "two parts": {0, 1}, "a part a layer": {0, 1, 2}} {
			w := inPieces(t, window, parts)
			got := runOn(t, w, prompt, 3, 0)
			if w.most != 3 {
				t.Fatalf("%d pieces, want 3", w.most)
			}
			if !slices.Equal(got.ids, want.ids) {
				t.Errorf("pieces of %d, %s: %v, want %v", window, name, got.ids, want.ids)
			}
			for i := range want.rows {
				if !slices.Equal(got.rows[i], want.rows[i]) {
					t.Errorf("pieces of %d, %s: row %d has other bits", window, name, i)
				}
			}
		}
	}
}

// TestMixedPiecesOnCard: sequences that pieces cut anywhere, some of which generate while
// others read their prompts, get what they get in a batch that is taken as a whole by the
// same kernels.
func TestMixedPiecesOnCard(t *testing.T) {
	run := func(w *walked) (rows [][]float32, ids [][]int32) {
		lengths := []int{30, 41, 69, 80, 30} // 250 rows: pieces of 84, 84 and 82, all for the kernels of many rows
		if testing.Short() {
			lengths = []int{21, 31, 54, 67, 25} // 198 rows: pieces of 66
		}
		var seqs []*drive.Sequence
		for i, n := range lengths {
			seqs = append(seqs, &drive.Sequence{Prompt: randomTokens(n, i), New: 3, See: func(pos int, row []float32) {
				if pos == n-1 {
					rows = append(rows, slices.Clone(row))
				}
			}})
		}
		if err := drive.Run(w, seqs, drive.Options{}); err != nil {
			t.Fatal(err)
		}
		for _, s := range seqs {
			ids = append(ids, s.Out)
		}
		return rows, ids
	}
	rows, ids := run(inPieces(t, 0, nil))
	window := 84
	if testing.Short() {
		window = 66
	}
	w := inPieces(t, window, []int{0, 1, 2})
	gotRows, gotIDs := run(w)
	if w.most != 3 {
		t.Fatalf("%d pieces, want 3", w.most)
	}
	for i := range rows {
		if !slices.Equal(gotRows[i], rows[i]) {
			t.Errorf("prompt %d has other bits", i)
		}
		if !slices.Equal(gotIDs[i], ids[i]) {
			t.Errorf("sequence %d: %v, want %v", i, gotIDs[i], ids[i])
		}
	}
	w = inPieces(t, 4, nil) // more generated rows than layers see at once
	n := 6
	if testing.Short() {
		n = 3
	}
	var seqs []*drive.Sequence
	for i := range 9 {
		seqs = append(seqs, &drive.Sequence{Prompt: randomTokens(3+i, i), New: n})
	}
	if err := drive.Run(w, seqs, drive.Options{}); err != nil {
		t.Fatal(err)
	}
	for i, s := range seqs {
		if testing.Short() && i%4 > 0 {
			continue // the first, one in the middle and the last are in other pieces
		}
		if want := runOn(t, w, randomTokens(3+i, i), n, 0).ids; !slices.Equal(s.Out, want) {
			t.Errorf("sequence %d: %v, alone %v", i, s.Out, want)
		}
	}
}
