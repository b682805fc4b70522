package device

// StreamMix says how products become the weights by which a block reads and changes Streams residual streams
// (manifold-constrained hyper-connections, arXiv 2512.24880, as DeepSeek-V4 and GLM-5.3 have them). With n streams, z the products of a row over the
// root of the mean square of all its streams plus NormEps, and base and scale as trained:
//
//	read [n]     sigmoid(z*scale[0] + base) + Eps, of each stream in the block's input
//	write [n]    2 sigmoid(z*scale[1] + base), of the block's output in each stream
//	mix [n, n]   softmax(z*scale[2] + base) by rows + Eps, then divided by the sums of its columns + Eps; and
//	             Iterations - 1 times by the sums of its rows + Eps and by the sums of its columns + Eps (Sinkhorn).
//	             mix[j, k] is of stream j in the new stream k
//
// The values of a row lie in this order, mix row by row. Before the head there is only read.
type StreamMix struct {
	Streams, Iterations int
	Eps, NormEps        float32
}

// Width returns the values of a row around a block.
func (p StreamMix) Width() int { return (2 + p.Streams) * p.Streams }

// MixWeights appends out = the weights of p from the products in out [T, p.Width] or [T, n]; x [T, n*H] are the streams, base [1, out.Cols] and
// scale [1, 3] or [1, 1] are F32.
func (l *List) MixWeights(out, x, base, scale Mat, p StreamMix) {
	o := l.add(OpMixWeights, out, x)
	o.W, o.A, o.Mix = base, scale, p
}
