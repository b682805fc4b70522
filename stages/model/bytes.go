package model

// BytesPerToken returns the number of bytes of BF16 weights that decode of one sequence reads for each
// token. Norms and biases are left out. So is the embedding table, of which a token reads one row; a tied
// one counts as the head.
func (c *Config) BytesPerToken() int64 {
	params := int64(c.Vocab) * int64(c.Hidden)
	add := func(list []TensorSpec, taken int) {
		for _, t := range list {
			switch {
			case len(t.Shape) != 2:
			case t.Part == Experts:
				params += int64(taken) * int64(t.Shape[0]) * int64(t.Shape[1])
			default:
				params += int64(t.Shape[0]) * int64(t.Shape[1])
			}
		}
	}
	for i := range c.Layers {
		add(c.Layers[i].Mixer.Tensors(c.Hidden), 0)
		add(c.Layers[i].FFN.Tensors(c.Hidden), c.MoE.Router.TopK)
	}
	return 2 * params
}
