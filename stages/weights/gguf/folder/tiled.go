package folder

import (
	"fmt"

	"krater/stages/weights/gguf"
)

// tiledLinear are the tensors that Qwen3.5's linear attention has and others lack.
var tiledLinear = [][2]string{
	{"attn_qkv.weight", "linear_attn.in_proj_qkv.weight"},
	{"attn_gate.weight", "linear_attn.in_proj_z.weight"},
	{"ssm_beta.weight", "linear_attn.in_proj_b.weight"},
	{"ssm_alpha.weight", "linear_attn.in_proj_a.weight"},
}

// tiles is llama.cpp's order of the value heads of Qwen3.5's linear attention: the first of every key head,
// then the second of every key head. The release has all value heads of a key head together. The zero
// value is the order of the release.
type tiles struct {
	keys int // key heads
	per  int // value heads of a key head, at least 2
	dim  int // values of a head
}

// at returns the stored place of a value head of the release.
func (t tiles) at(head int) int { return head%t.per*t.keys + head/t.per }

// ordered brings rows of heads of size elements into the order of the release, in place.
func ordered[E any](t tiles, rows []E, size int) {
	width := t.keys * t.per * size
	stored := make([]E, width)
	for ; len(rows) >= width; rows = rows[width:] {
		copy(stored, rows)
		for head := range t.keys * t.per {
			copy(rows[head*size:][:size], stored[t.at(head)*size:])
		}
	}
}

// whole reports whether each head's part of a row is whole blocks.
func (t tiles) whole(kind gguf.Type) bool { return t.dim%kind.Block().Elements == 0 }

// bytes returns the size of a head's part of a row.
func (t tiles) bytes(kind gguf.Type) int {
	b := kind.Block()
	return t.dim / b.Elements * b.Bytes
}

// tiled reports whether a tensor of the layer has parts of value heads.
func (b *binder) tiled(suffix string) bool {
	switch suffix {
	case "attn_qkv.weight", "attn_gate.weight", "ssm_beta.weight", "ssm_alpha.weight", "ssm_conv1d.weight", "ssm_a", "ssm_dt.bias", "ssm_out.weight":
		return b.family.tiled
	}
	return false
}

// untiled adds a tensor whose rows, or columns of ssm_out, are heads of values.
func (b *binder) untiled(suffix string, t gguf.Tensor, name string, scales scales) error {
	size := func(field string) int {
		n, _ := b.d.config[field].(int64)
		return int(n)
	}
	keys, heads, dim := size("linear_num_key_heads"), size("linear_num_value_heads"), size("linear_value_head_dim")
	if keys < 1 || heads < keys || heads%keys != 0 {
		return fmt.Errorf("%w: %d value heads of linear attention for %d key heads", ErrMetadata, heads, keys)
	}
	v, order := b.changed(suffix, t), tiles{keys, heads / keys, dim}
	v.Scale = scales.of(0)
	from := t
	if len(t.Shape) == 1 { // one value for each head
		from.Shape = []int{t.Shape[0], 1}
	}
	got, want := height(from), heads*dim
	switch suffix {
	case "ssm_out.weight":
		got = width(t)
	case "ssm_beta.weight", "ssm_alpha.weight", "ssm_a", "ssm_dt.bias":
		order.dim, want = 1, heads
	case "attn_qkv.weight", "ssm_conv1d.weight":
		want += 2 * keys * size("linear_key_head_dim")
	}
	if len(t.Shape) > 2 || got != want || from.Type.Block().Elements > width(from) {
		return fmt.Errorf("%w: %q has the shape %v for %d value heads of %d", ErrTensor, t.Name, t.Shape, heads, dim)
	}
	switch {
	case order.per == 1:
	case suffix == "ssm_out.weight":
		v.columns = order
	default:
		others := got - heads*order.dim // queries and keys
		v.pieces = nil
		if others > 0 {
			v.pieces = []piece{{from: from, rows: others}}
		}
		for head := range heads {
			v.pieces = append(v.pieces, piece{from: from, first: others + order.at(head)*order.dim, rows: order.dim})
		}
	}
	b.d.add(name, v)
	return nil
}
