package direct_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/compare/goldens"
	"krater/stages/direct"
	"krater/stages/internal/refdevice"
	"krater/stages/load"
)

// wander decodes follow behind prompt; before every step all blocks of the sequence go
// elsewhere, by way of the host's memory every other time, and where they were is overwritten.
func wander(t *testing.T, m *direct.Model, prompt, follow []int32) (rows [][]float32) {
	t.Helper()
	lim := m.Limits()
	n := (len(prompt) + len(follow) + lim.BlockTokens - 1) / lim.BlockTokens
	if 3*n+1 > lim.Blocks || n > lim.HostBlocks {
		t.Fatalf("%d blocks are too many", n)
	}
	at := func(home int) (blocks []int32) {
		for i := range n {
			blocks = append(blocks, int32(home*n+i))
		}
		return blocks
	}
	junk := int32(lim.Blocks - 1)
	home, tokens, pos := 0, prompt, 0
	for step := range 1 + len(follow) {
		b := &stages.Step{}
		if step > 0 {
			tokens, pos = follow[step-1:step], len(prompt)+step-1
			next := (home + 1) % 3
			for i, from := range at(home) {
				if to := at(next)[i]; step%2 == 0 {
					b.Moves = append(b.Moves, stages.Move{Kind: stages.Save, From: from, To: int32(i)}, stages.Move{Kind: stages.Load, From: int32(i), To: to})
				} else {
					b.Moves = append(b.Moves, stages.Move{Kind: stages.Copy, From: from, To: to})
				}
				b.Moves = append(b.Moves, stages.Move{Kind: stages.Copy, From: junk, To: from})
			}
			home = next
		}
		b.Tokens, b.Spans = tokens, []stages.Span{{Decode: step > 0, Want: true, Span: device.Span{Len: len(tokens), Pos: pos, Blocks: at(home)}}}
		if err := m.Step(b, nil, func(st *stages.State) error {
			rows = append(rows, slices.Clone(st.LogitRow(0)))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return rows
}

// TestMovedBlocks: wherever the blocks of a sequence have been meanwhile, its logits keep
// every bit, whatever the cache is kept in.
func TestMovedBlocks(t *testing.T) {
	follow := []int32{5, 17, 3, 40, 2, 9}
	kinds := []tensor.DType{tensor.F32, tensor.BF16, tensor.F8E4M3, tensor.I8}
	for golden, name := range goldens.Names(t) {
		dir := folder(name)
		for i, kv := range kinds {
			if !turn(golden, i, len(kinds)) {
				continue
			}
			for what, dev := range map[string]load.Device{"cpu": processor(t, 2), "reference": refdevice.Device{}} {
				if what == "reference" && (kv == tensor.F32 || testing.Short() && kv != tensor.I8) {
					continue
				}
				t.Run(fmt.Sprintf("%s, %s, %s", name, kv, what), func(t *testing.T) {
					lim := limits
					lim.HostBlocks = 12
					prompt := texts(t, dir, 1)[0]
					m := open(t, dev, dir, "config.json", load.Options{Limits: lim, KVType: kv, Partition: halves(t, dir)})
					for _, g := range m.model.Parts.Groups {
						if refused, err := g.KeepBlocks(processor(t, 1)); refused != nil || err != nil {
							t.Fatal(refused, err)
						}
					}
					want := followed(t, m, [][]int32{prompt}, [][]int32{follow})
					for i, row := range wander(t, m.model, prompt, follow) {
						if !slices.Equal(row, want[i]) {
							t.Fatalf("logits %d have other bits", i)
						}
					}
				})
			}
		}
	}
}

// TestMovesAreChecked: a move of a block that is not there fails the batch before anything
// is computed.
func TestMovesAreChecked(t *testing.T) {
	lim := limits
	lim.HostBlocks = 2
	m := open(t, processor(t, 1), folder("qwen2"), "config.json", load.Options{Limits: lim})
	most := int32(lim.Blocks)
	for _, bad := range []stages.Move{
		{Kind: stages.Copy, From: most}, {Kind: stages.Copy, To: -1}, {Kind: stages.Copy, From: 3, To: 3}, {Kind: stages.Save, To: 2},
		{Kind: stages.Save, From: most}, {Kind: stages.Load, From: 2}, {Kind: stages.Load, To: most}, {Kind: stages.SaveState}, {Kind: stages.LoadState}, {Kind: 5},
	} {
		b := &stages.Step{Tokens: []int32{1}, Spans: []stages.Span{{Span: device.Span{Len: 1, Blocks: []int32{0}}}}, Moves: []stages.Move{bad}}
		if err := m.model.Step(b, nil, nil); !errors.Is(err, stages.ErrBatch) {
			t.Errorf("%s of %d to %d: %v", bad.Kind, bad.From, bad.To, err)
		}
	}
}

// TestDecodeTogether: generated rows that are computed again, several in a batch, have the
// bits that they had one by one. As a prompt they would not: latent attention has two forms.
func TestDecodeTogether(t *testing.T) {
	follow := []int32{5, 17, 3, 40, 2, 9, 11}
	differ := 0
	kinds := []tensor.DType{tensor.F32, tensor.BF16, tensor.F8E4M3, tensor.I8}
	for golden, name := range goldens.Names(t) {
		dir := folder(name)
		for i, kv := range kinds {
			if !turn(golden, i, len(kinds)) {
				continue
			}
			m := open(t, processor(t, 2), dir, "config.json", load.Options{Limits: limits, KVType: kv, Partition: halves(t, dir)})
			prompt := texts(t, dir, 1)[0]
			want := followed(t, m, [][]int32{prompt}, [][]int32{follow})[1:]
			again := func(decode bool) (rows [][]float32) {
				blocks := []int32{3, 5, 7, 9, 11, 13, 15, 17}
				pos := 0
				for _, part := range [][]int32{prompt, follow[:5], follow[5:]} {
					b := &stages.Step{Tokens: part, Spans: []stages.Span{{Decode: decode && pos > 0, Every: pos > 0, Span: device.Span{Len: len(part), Pos: pos, Blocks: blocks}}}}
					if err := m.model.Step(b, nil, func(st *stages.State) error {
						for i := range st.Wanted {
							rows = append(rows, slices.Clone(st.LogitRow(i)))
						}
						return nil
					}); err != nil {
						t.Fatal(err)
					}
					pos += len(part)
				}
				return rows
			}
			same := func(got [][]float32) bool {
				return slices.EqualFunc(got, want, func(a, b []float32) bool { return slices.Equal(a, b) })
			}
			if !same(again(true)) {
				t.Errorf("%s, %s: other bits", name, kv)
			}
			if !same(again(false)) {
				differ++
			}
		}
	}
	if differ == 0 {
		t.Error("as prompts they have the same bits, too: the test shows nothing")
	}
}
