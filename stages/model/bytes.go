package model

// BytesPerToken is the size of the BF16 weights that one token of a lone
// sequence touches: what decode has to read from memory. Norms and biases are
// left out, and so is the embedding table, of which a token reads one row (a
// tied one counts as the head).
func (c *Config) BytesPerToken() int64 {
	h := int64(c.Hidden)
	params := int64(c.Layers)*c.Attention.params(h) + int64(c.Vocab)*h
	for i := range c.Layers {
		if !c.MoELayer(i) {
			params += 3 * h * int64(c.DenseFF)
			continue
		}
		params += h*int64(c.MoE.Experts) + 3*h*int64(c.MoE.FF)*int64(c.MoE.Router.TopK+c.MoE.Shared)
	}
	return 2 * params
}

// params is the number of values in the matrices of the block, for hidden size h.
func (a Attention) params(h int64) int64 {
	heads := int64(a.Heads)
	if a.Kind == AttentionGQA {
		return 2*h*heads*int64(a.HeadDim) + h*int64(a.KVWidth())
	}
	q := h * heads * int64(a.QKDim())
	if a.QRank > 0 {
		q = int64(a.QRank) * (h + heads*int64(a.QKDim()))
	}
	return q + h*int64(a.KVWidth()) + int64(a.KVRank)*heads*int64(a.Nope+a.VDim) + heads*int64(a.VDim)*h
}
