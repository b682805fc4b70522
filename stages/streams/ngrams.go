package streams

import (
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/model"
)

// Table is a layer's table of n-grams (model.NGrams), and the weights by which its rows become what is added
// to the streams.
type Table struct {
	Spec               *model.NGrams
	Shards             []device.Mat  // [rows of a shard, dim]; on an accelerator one, in memory of the host
	Words              device.Mat    // of Spec.Sizes, on an accelerator; absent elsewhere
	Key                device.Weight // [n*H, width]
	Value              device.Weight // [H, width]
	NormKey, NormQuery device.Mat    // [1, n*H]
	NormConv           device.Mat    // [1, n*H]
	Conv               device.Mat    // [taps, n*H] F32
}

// NGrams computes what a table says. It owns scratch memory, so it computes one batch at a time.
type NGrams struct {
	table *Table
	taps  device.TapConv
	rows  device.Mat // [tokens, heads] I32
	read  device.Mat // [tokens, width]: the rows side by side
	added device.Mat // [tokens, n*H]
}

// New makes the stage with scratch memory on dev for batches within lim.
func (t *Table) New(dev device.Device, lim stages.Limits, hidden int) (*NGrams, error) {
	g := &NGrams{table: t, taps: t.Spec.Conv()}
	rows := device.RowType(device.LayoutOf(dev))
	for i, x := range t.Spec.Scratch(hidden) {
		dt := rows
		if i == 0 {
			dt = tensor.I32
		}
		m, err := device.AllocMat(dev, dt, lim.LayerRows(), x.Width)
		if err != nil {
			g.Close()
			return nil, err
		}
		*[...]*device.Mat{&g.rows, &g.read, &g.added}[i] = m
	}
	return g, nil
}

// Close frees the scratch memory.
func (g *NGrams) Close() {
	for _, m := range [...]*device.Mat{&g.rows, &g.read, &g.added} {
		if !m.Zero() {
			m.Buf.Free()
		}
		*m = device.Mat{}
	}
}

// Ahead appends that the rows which Run will read are asked for. It comes some layers before.
func (g *NGrams) Ahead(p *stages.Program, st *stages.State, kept []device.KV) {
	for _, x := range [...]device.Spans{st.DecodeSpans(), st.PrefillSpans()} {
		if len(x.List) > 0 {
			p.NGramsAhead(g.rows.RowRange(0, st.T), st.IDs, g.table.Shards, kept[0], x, g.table.Spec.Sizes)
		}
	}
}

// Run appends that st.Hidden grows by what the table says for the batch's tokens. kept are the newest ids and
// the newest inputs of the convolution of each sequence. st.Delta and st.Mix are overwritten.
func (g *NGrams) Run(p *stages.Program, st *stages.State, kept []device.KV, layer int) {
	t, n := g.table, g.table.Spec.Count
	rows, read, added := g.rows.RowRange(0, st.T), g.read.RowRange(0, st.T), g.added.RowRange(0, st.T)
	spans := [...]device.Spans{st.DecodeSpans(), st.PrefillSpans()}
	for _, x := range spans {
		if len(x.List) > 0 {
			p.NGrams(read, rows, st.IDs, t.Shards, t.Words, kept[0], x, t.Spec.Sizes)
		}
	}
	p.Observe(layer, "ngram_rows", rows)
	p.Observe(layer, "ngram_embed", read)
	m, value := st.Mix, st.Delta
	p.MatMul(value, read, device.QRows{}, &t.Value)
	p.Observe(layer, "ple_value", value)
	p.MatMul(m.Weights, read, device.QRows{}, &t.Key)
	norms(p, m.Weights, m.Weights, t.NormKey, n, t.Spec.NormEps)
	norms(p, m.Normed, st.Hidden, t.NormQuery, n, t.Spec.NormEps)
	p.StreamGates(m.Inject, m.Weights, m.Normed)
	p.Observe(layer, "ple_gate", m.Inject)
	p.Sigmoid(m.Inject, device.Sigmoid{In: 1, Out: 1})
	p.Spread(added, value, m.Inject, device.Mat{})
	norms(p, m.Normed, added, t.NormConv, n, t.Spec.NormEps)
	p.Observe(layer, "ple_conv_in", m.Normed)
	for _, x := range spans {
		if len(x.List) > 0 {
			p.TapConv(m.Weights, m.Normed, t.Conv, kept[1], x, &g.taps)
		}
	}
	p.Add(added, m.Weights)
	p.Observe(layer, "ple_out", added)
	p.Add(st.Hidden, added)
}
