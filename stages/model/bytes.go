package model

// BytesPerToken is the size of the BF16 weights that one token of a lone
// sequence touches: what decode has to read from memory. Norms are left out,
// and so is the embedding table, of which a token reads one row.
func (c *Config) BytesPerToken() int64 {
	a := c.Attention
	h, heads := int64(c.Hidden), int64(a.Heads)
	q := h * heads * int64(a.QKDim())
	if a.QRank > 0 {
		q = int64(a.QRank) * (h + heads*int64(a.QKDim()))
	}
	attention := q + h*int64(a.KVWidth()) + int64(a.KVRank)*heads*int64(a.Nope+a.VDim) + heads*int64(a.VDim)*h
	params := int64(c.Layers)*attention + int64(c.Vocab)*h
	for i := range c.Layers {
		if !c.MoELayer(i) {
			params += 3 * h * int64(c.DenseFF)
			continue
		}
		params += h*int64(c.MoE.Experts) + 3*h*int64(c.MoE.FF)*int64(c.MoE.Router.TopK+c.MoE.Shared)
	}
	return 2 * params
}
