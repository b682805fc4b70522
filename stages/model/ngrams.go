package model

import (
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"krater/kernels/device"
)

// NGrams is a layer's table of n-grams (PLE of Qwen4-Exp): a token and those before it choose rows, and what these
// say is added to all residual streams before the mixer. With e the rows of a token side by side,
//
//	gate[s]  = the product of norm(key e)[s] and norm(X[s]), over sqrt(H); then sign(gate) sqrt(max(|gate|, 1e-6))
//	v[s]     = sigmoid(gate[s]) * value e
//	X       += v + silu(conv(norm(v)))
//
// conv is causal, of each channel by itself, over Taps tokens that are Sizes.Order apart.
type NGrams struct {
	Sizes  *device.NGrams
	Shards int // tensors that the table is cut into, along its rows
	Rows   int // of the whole table
	Taps   int // ple_conv_kernel_size
	Streams
	NormEps float32
}

// ngramRoles are the names of the tensors; in that of the table "*" stands for the number of the shard.
var ngramRoles = Roles{
	"ngram_table":      "ple.ple_embedding.ngram_embedding.shard_*.weight",
	"ngram_key":        "ple.key_proj.weight",
	"ngram_value":      "ple.value_proj.weight",
	"ngram_norm_key":   "ple.norm_key.weight",
	"ngram_norm_query": "ple.norm_query.weight",
	"ngram_norm_conv":  "ple.norm_conv.weight",
	"ngram_conv":       "ple.conv1d.weight",
}

// ngramFacts are tensors that repeat what follows from the config.
var ngramFacts = []string{"layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"}

// TableName returns the name of a shard of the layer's table.
func (l *LayerSpec) TableName(shard int) string {
	return strings.Replace(l.Name("ngram_table"), "*", strconv.Itoa(shard), 1)
}

// tensors lists the tensors in the order of use.
func (g *NGrams) tensors(l *LayerSpec, h int) []TensorSpec {
	if g == nil {
		return nil
	}
	var list []TensorSpec
	for i := range g.Shards {
		list = append(list, TensorSpec{Name: l.TableName(i), Role: "ngram_table", Shape: []int{g.Rows / g.Shards, g.Sizes.Dim}, Part: Tables})
	}
	width, e := g.Width(h), g.Sizes.Width()
	for _, t := range []TensorSpec{
		{Role: "ngram_key", Shape: []int{width, e}, Part: Router},
		{Role: "ngram_value", Shape: []int{h, e}, Part: Router},
		{Role: "ngram_norm_key", Shape: []int{width}, Part: Router, Norm: true},
		{Role: "ngram_norm_query", Shape: []int{width}, Part: Router, Norm: true},
		{Role: "ngram_norm_conv", Shape: []int{width}, Part: Router, Norm: true},
		{Role: "ngram_conv", Shape: []int{width, 1, g.Taps}, Part: Router, F32: true},
	} {
		t.Name = l.Name(t.Role)
		list = append(list, t)
	}
	return list
}

// Conv returns the sizes of the convolution.
func (g *NGrams) Conv() device.TapConv { return device.TapConv{Taps: g.Taps, Step: g.Sizes.Order} }

// state lists the states of a sequence that the layer keeps: the newest token ids, and the newest inputs of the
// convolution.
func (g *NGrams) state(h int) []State {
	if g == nil {
		return nil
	}
	return []State{
		{Kind: Recurrent, Width: 1, Rows: g.Sizes.Order},
		{Kind: Recurrent, Width: g.Width(h), Rows: g.Conv().Reach()},
	}
}

// Scratch lists the matrices that a batch needs in the layer: the numbers of the rows, the rows, and the sum that
// is added to the streams.
func (g *NGrams) Scratch(h int) []Scratch {
	return []Scratch{{g.Sizes.Heads(), false}, {g.Sizes.Width(), false}, {g.Width(h), false}}
}

// ngrams makes the sizes of a table: which counts the tables of the model from 0. seed, vocab and base are
// fields of the config.
func ngrams(which, order, perOrder, dim, vocab, base int, seed uint64, eos int32) *device.NGrams {
	g := &device.NGrams{Order: order, PerOrder: perOrder, Dim: dim, EOS: eos}
	half := max(1, (uint64(1)<<63-1)/uint64(vocab)/2)
	for j := range order {
		z := splitMix(seed + 10007*uint64(which) + 0x9E3779B97F4A7C15*uint64(j+1))
		g.Multipliers = append(g.Multipliers, 2*(z%half)+1)
	}
	heads, prime, offset := g.Heads(), uint64(base)-1, uint64(0)
	for j := range (which + 1) * heads {
		for prime++; !isPrime(prime); prime++ {
		}
		if j >= which*heads {
			g.Sizes, g.Offsets = append(g.Sizes, prime), append(g.Offsets, offset)
			offset += prime
		}
	}
	return g
}

// splitMix is the finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
func splitMix(z uint64) uint64 {
	z += 0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// isPrime is the Miller-Rabin test with bases that decide every number of 32 bits.
func isPrime(n uint64) bool {
	small := []uint64{2, 3, 5, 7}
	if slices.Contains(small, n) {
		return true
	}
	if n < 2 || n%2 == 0 {
		return false
	}
	shift := bits.TrailingZeros64(n - 1)
	odd := (n - 1) >> shift
base:
	for _, b := range small {
		x := power(b, odd, n)
		if x == 1 || x == n-1 {
			continue
		}
		for range shift - 1 {
			if x = x * x % n; x == n-1 {
				continue base
			}
		}
		return false
	}
	return true
}

// power is b^e modulo n, which is below 2^32.
func power(b, e, n uint64) uint64 {
	r := uint64(1)
	for b %= n; e > 0; e >>= 1 {
		if e&1 == 1 {
			r = r * b % n
		}
		b = b * b % n
	}
	return r
}
