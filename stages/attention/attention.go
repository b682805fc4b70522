// Package attention holds the attention blocks. Multi-head latent attention
// (DeepSeek-V2, arXiv 2405.04434 section 2.1) caches one compressed row a token
// for all heads; prompt rows use it in the expanded form, decoded rows in the
// absorbed form, which never expands keys and values. Grouped-query attention
// (arXiv 2305.13245) caches keys and values of few heads, each shared by several
// query heads.
package attention

import (
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/model"
)

// Stage is an attention block. It owns scratch memory, so it computes one batch
// at a time; the layers of a group share it.
type Stage interface {
	// Run adds the block's output for st.Input to the residual stream, or leaves it in
	// st.Delta [T, H], pending, and stores the batch's rows in cache [slots, Attention.KVWidth].
	Run(s device.Stream, st *stages.State, w *Weights, cache device.KV, layer int, probe stages.Probe)
	// Close frees the scratch memory.
	Close()
}

// commonOps are the operators of every block.
type commonOps interface {
	stages.Products
	Rope(s device.Stream, x, positions, table device.Mat, p device.Rope)
	StoreRows(s device.Stream, cache device.KV, src, slots device.Mat)
}

// MLAOps are the operators of latent attention.
type MLAOps interface {
	commonOps
	RMSNorm(s device.Stream, out, x, w device.Mat, eps float32)
	MLAPrefill(s device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, spans device.Spans, p device.MLA)
	MLADecode(s device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, spans device.Spans, p device.MLA)
}

// LatentOps are of a device that does what lies between the projections and attention
// in one go, with the bits of the single operators: kv's compressed part [T, rank] is
// normed, its rotated part and q's are rotated, all in place, and kv is stored.
type LatentOps interface {
	Latent(s device.Stream, cache device.KV, q, kv, norm device.Mat, eps float32, positions, slots, table device.Mat, qRope, kRope device.Rope)
	// LatentDecode is Latent and then MLADecode, of a batch with generated rows only; q and
	// kv may hold anything afterwards.
	LatentDecode(s device.Stream, out, q, kv, norm device.Mat, eps float32, cache device.KV, positions, slots, table device.Mat, qRope, kRope device.Rope,
		kvB device.KVB, spans device.Spans, p device.MLA)
}

// GQAOps are the operators of grouped-query attention.
type GQAOps interface {
	commonOps
	AddBias(s device.Stream, x, b device.Mat)
	GQA(s device.Stream, out, q device.Mat, cache device.KV, spans device.Spans, p device.GQA)
}

// Ops are the operators of all blocks.
type Ops interface {
	MLAOps
	GQAOps
}

// Weights are those of one layer; absent ones are the zero Mat. Latent attention
// has Q or else QA, QNorm and QB (q_lora_rank), then KVA to KVB and O;
// grouped-query attention has Q, K, V, O and, with biases, the three of them.
// qk = nope + rope, d = head size.
type Weights struct {
	Q      device.Weight // [heads*qk, H] or [heads*d, H] q_proj
	QA     device.Weight // [q_rank, H] q_a_proj
	QNorm  device.Mat    // [1, q_rank] q_a_layernorm
	QB     device.Weight // [heads*qk, q_rank] q_b_proj
	KVA    device.Weight // [kv_rank+rope, H] kv_a_proj_with_mqa
	KVNorm device.Mat    // [1, kv_rank] kv_a_layernorm
	KVB    device.KVB    // [heads*(nope+v), kv_rank] kv_b_proj
	O      device.Weight // [H, heads*v] or [H, heads*d] o_proj

	K, V device.Weight // [kv_heads*d, H] k_proj, v_proj

	// Joint, where there is one, is what the input is multiplied with, as one matrix:
	// Q or QA and then KVA, or Q, K and V, which are absent then. A step has a product
	// for all of them, not a loop over its threads for each.
	Joint device.Weight

	QBias        device.Mat // [1, heads*d]
	KBias, VBias device.Mat // [1, kv_heads*d]
}

// New makes the block that cfg asks for, with scratch memory on dev for batches
// within lim and for layers whose weights are kept as those of w. table is the
// cos/sin table of RopeTable on the same device.
func New(dev device.Device, ops Ops, cfg *model.Config, lim stages.Limits, w *Weights, table device.Mat) (Stage, error) {
	if cfg.Attention.Kind == model.AttentionGQA {
		return NewGQA(dev, ops, cfg, lim, w, table)
	}
	return NewMLA(dev, ops, cfg, lim, w, table)
}

// scratch is the memory a block owns.
type scratch []device.Buffer

// piece is a matrix to allocate; one without columns stays absent.
type piece struct {
	m    *device.Mat
	cols int
}

// alloc makes every piece [rows, cols] of the device's row type, or none.
func (b *scratch) alloc(dev device.Device, rows int, pieces []piece) error {
	for _, p := range pieces {
		if p.cols == 0 {
			continue
		}
		mat, err := device.AllocMat(dev, device.RowType(device.LayoutOf(dev)), rows, p.cols)
		if err != nil {
			b.free()
			return err
		}
		*b = append(*b, mat.Buf)
		*p.m = mat
	}
	return nil
}

// room allocates what x's rows take as integers for the layer w, if it wants
// them.
func (b *scratch) room(dev device.Device, x device.Mat, w *device.Weight) (stages.Input, error) {
	if !w.Integer() {
		return stages.NewInput(x, device.QRows{}), nil
	}
	q, err := device.AllocQRows(dev, x.Rows, x.Cols, w.Q.Group)
	if err != nil {
		b.free()
		return stages.Input{}, err
	}
	*b = append(*b, q.Q.Buf, q.Scale.Buf, q.Bias.Buf)
	return stages.NewInput(x, q), nil
}

func (b *scratch) free() {
	for _, buf := range *b {
		buf.Free()
	}
	*b = nil
}
