package folder

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/stages/weights/gguf"
)

// TestTiledColumns: columns of heads come in the order of the release, as values and, where heads are whole
// blocks, as blocks.
func TestTiledColumns(t *testing.T) {
	order := tiles{keys: 2, per: 3, dim: 128}
	const width, rows = 2 * 3 * 128, 5
	for kind, whole := range map[gguf.Type]bool{gguf.F32: true, gguf.BF16: true, gguf.Q8_0: true, gguf.Q4_K: false} {
		unit := kind.Block()
		random := rand.New(rand.NewPCG(1, uint64(kind)))
		data := make([]byte, rows*width/unit.Elements*unit.Bytes)
		for i := range data {
			data[i] = byte(random.Uint32())
			if at := i % unit.Bytes; at < 4 && at%2 == 1 { // no scale or number is infinite
				data[i] = 0x2c
			}
		}
		stored := gguf.Tensor{Name: "x", Type: kind, Shape: []int{rows, width}, Data: data}
		v := View{Shape: stored.Shape, Scale: 1, columns: order, pieces: []piece{{from: stored, rows: rows}}}
		raw, got := make([]float32, rows*width), make([]float32, rows*width)
		if err := errors.Join(kind.Decode(raw, data), v.Floats(got, 0)); err != nil {
			t.Fatal(err)
		}
		for row := range rows {
			for head := range 6 {
				place := []int{0, 2, 4, 1, 3, 5}[head] // both key heads have their first in the first two places
				if at := row * width; !slices.Equal(got[at+head*128:][:128], raw[at+place*128:][:128]) {
					t.Fatalf("%s: head %d of row %d", kind, head, row)
				}
			}
		}
		one := make([]float32, width)
		if err := v.Floats(one, 3); err != nil || !slices.Equal(one, got[3*width:4*width]) {
			t.Errorf("%s: row 3 by itself: %v", kind, err)
		}
		blocks, ok := v.Blocks()
		if ok != whole {
			t.Errorf("%s: blocks %t", kind, ok)
		}
		if again := make([]float32, rows*width); ok && (kind.Decode(again, blocks) != nil || !slices.Equal(again, got)) {
			t.Errorf("%s: blocks have other values", kind)
		}
		x := v.tensor()
		if whole := make([]float32, rows*width); x.Floats(whole, 0) != nil || !slices.Equal(whole, got) {
			t.Errorf("%s: the tensor has other values", kind)
		}
	}
}

// TestFaultyTiles: tensors and numbers of heads that do not fit are refused.
func TestFaultyTiles(t *testing.T) {
	_, f, _ := build(t, "qwen3_5")
	for name, shape := range map[string][]int{
		"blk.0.ssm_beta.weight": {5, 96}, "blk.0.ssm_a": {7}, "blk.0.ssm_out.weight": {96, 191}, "blk.1.attn_qkv.weight": {447, 96},
		"blk.0.ssm_conv1d.weight": {449, 4}, "blk.1.attn_gate.weight": {193, 96}, "blk.0.ssm_dt.bias": {6, 2, 1},
	} {
		n := 1
		for _, d := range shape {
			n *= d
		}
		other := gguf.Tensor{Name: name, Type: gguf.F32, Shape: shape, Data: make([]byte, 4*n)}
		if _, err := New(again(t, f, map[string]any{}, map[string][]gguf.Tensor{name: {other}})); !errors.Is(err, ErrTensor) {
			t.Errorf("%s %v: %v", name, shape, err)
		}
	}
	for _, heads := range []uint32{4, 12} {
		if _, err := New(again(t, f, map[string]any{"qwen35.ssm.group_count": heads}, nil)); !errors.Is(err, ErrMetadata) {
			t.Errorf("%d key heads: %v", heads, err)
		}
	}
	next := again(t, f, map[string]any{"qwen35.block_count": uint32(4), "qwen35.nextn_predict_layers": uint32(1)},
		map[string][]gguf.Tensor{"": {{Name: "blk.3.nextn.eh_proj.weight", Type: gguf.F32, Shape: []int{1, 2}, Data: make([]byte, 8)}}})
	if d, err := New(next); err != nil || d.config["num_hidden_layers"] != int64(3) {
		t.Errorf("with a draft layer: %v", err)
	}
}
