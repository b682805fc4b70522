//go:build cuda

package sample

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	host "krater/stages/sample"
)

// changeParams enables each change of logits now and then; mask has the allowed tokens.
func changeParams(r *rand.Rand, vocab int) (p host.Params, mask []uint32) {
	p = randomParams(r, vocab)
	maybe := func() bool { return r.IntN(2) == 0 }
	token := func() int32 { return int32(r.IntN(vocab)) }
	if maybe() {
		p.RepetitionPenalty = 0.5 + r.Float64()
	}
	if maybe() {
		p.PresencePenalty = r.NormFloat64()
	}
	if maybe() {
		p.FrequencyPenalty = r.NormFloat64()
	}
	if maybe() {
		p.LogitBias = map[int32]float32{}
		for range 1 + r.IntN(4) {
			p.LogitBias[token()] = float32(5 * r.NormFloat64())
		}
	}
	if maybe() {
		p.StopIDs, p.EOS, p.MinTokens = []int32{token(), token()}, []int32{token()}, r.IntN(4)
		p.EOS = append(p.EOS, p.StopIDs[0])
	}
	if r.IntN(4) == 0 {
		for range (vocab + 31) / 32 {
			mask = append(mask, r.Uint32()|r.Uint32())
		}
		p.Allow = func(int, bool) []uint32 { return mask }
	}
	return p, mask
}

// changed is a sequence on both sides.
type changed struct {
	seq    *host.Sequence
	params host.Params
	mask   []uint32
	change device.Encoded // nil for none
	tokens []int32
	over   bool // no token could be chosen
}

// changeRig has sequences, and rows for their histories on a GPU.
type changeRig struct {
	c     *cudatest.GPU
	vocab int
	list  []*changed
	slots []int // of list in store
	store launch.Mat
}

func newChangeRig(t *testing.T, c *cudatest.GPU, rng *rand.Rand, rows, vocab int) *changeRig {
	t.Helper()
	r := &changeRig{c: c, vocab: vocab, store: c.Mat(i32, rows+2, device.ChangeWords+96), slots: rng.Perm(rows + 2)[:rows]}
	for i := range rows {
		p, mask := changeParams(rng, vocab)
		q := &changed{params: p, mask: mask}
		for range 1 + rng.IntN(70) {
			q.tokens = append(q.tokens, int32(rng.IntN(vocab)))
		}
		var err error
		if q.seq, err = host.New(p, q.tokens, vocab); err != nil {
			t.Fatal(err)
		}
		p.Logprobs = -1
		other, err := host.New(p, q.tokens, vocab)
		if err != nil {
			t.Fatal(err)
		}
		d, ok := other.DrawAt(0)
		if !ok {
			t.Fatalf("a GPU cannot choose by %+v", p)
		}
		q.change = d.Change
		r.list = append(r.list, q)
		r.put(i)
	}
	return r
}

// put writes a row of the store: the change, and all tokens but the last.
func (r *changeRig) put(i int) {
	q, row := r.list[i], r.store.RowRange(r.slots[i], r.slots[i]+1)
	copyIn := func(at int, words []int32) {
		r.c.Stream().CopyIn(row.At+launch.Ptr(4*at), cudatest.Raw(words))
	}
	copyIn(0, q.change)
	copyIn(device.ChangeWords, q.tokens[:len(q.tokens)-1])
	r.c.Sync()
}

// choose returns the GPU's n-th token of every sequence, with its logarithm of probability.
func (r *changeRig) choose(logits []float32, n int) ([]int32, []float32) {
	c, rows, words := r.c, len(r.list), device.MaskStride(r.vocab)
	records, table, masks := make([]byte, rows*RowBytes), make([]int32, 2*rows), make([]int32, rows*words)
	var ids, wanted []int32
	for i, q := range r.list {
		p := &q.params
		row := Row{Temperature: p.Temperature, TopP: p.TopP, MinP: p.MinP, TopK: p.TopK, Seed: p.Seed, N: uint64(n), Logprob: p.Logprobs >= 0}
		row.Put(records[i*RowBytes:])
		table[2*i] = -1
		if q.change != nil {
			table[2*i] = int32(r.slots[i])
		}
		if q.mask != nil {
			number := int32(n + 1)
			table[2*i+1], masks[i*words+device.MaskFlag(r.vocab)] = number, 2*number+1
			for j, w := range q.mask {
				masks[i*words+j] = int32(w)
			}
		}
		ids, wanted = append(ids, 0, q.tokens[len(q.tokens)-1]), append(wanted, int32(2*i+1)) // every other row of a step
	}
	x, raw := c.F32(logits, rows, r.vocab), c.F32(logits, rows, r.vocab)
	out, logprobs, scratch := c.Mat(i32, rows, 1), c.Mat(f32, rows, 1), c.Alloc(Scratch(rows, r.vocab))
	changes := Changes{Rows: c.Bytes(records), Table: c.I32(table, rows, 2), IDs: c.I32(ids, 2*rows, 1), Wanted: c.I32(wanted, rows, 1),
		Store: r.store, Masks: c.I32(masks, rows, words), Limit: time.Minute}
	c.Run(func(l *launch.List) {
		Change(l, x, &changes)
		Sample(l, out, x, changes.Rows, logprobs, raw, scratch)
	})
	return cudatest.Download[int32](c, out.At, rows), c.Floats(logprobs)
}

// TestChangesAgainstHost: with penalties, biases, end tokens that are not allowed yet and masks,
// the GPU chooses the same tokens as the host, one after the other. It keeps the history itself,
// and uses history that the host has written.
func TestChangesAgainstHost(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(3, 1))
	chosen := 0
	for _, vocab := range []int{3, 40, 300, 8200, 17001} {
		rows := 20
		if vocab > 1000 {
			rows = 5
		}
		r := newChangeRig(t, c, rng, rows, vocab)
		for n := range 5 {
			var logits []float32
			for i := range rows {
				row := randomRow(rng, i+n, vocab)
				row[rng.IntN(vocab)] = 1
				logits = append(logits, row...)
			}
			if n == 3 { // as after a preemption
				i := rng.IntN(rows)
				r.c.Run(func(l *launch.List) {
					l.Fill(r.store.RowRange(r.slots[i], r.slots[i]+1).At, int64(4*r.store.Cols), cudatest.Poison)
				})
				r.put(i)
			}
			ids, logprobs := r.choose(logits, n)
			for i, q := range r.list {
				if q.over {
					continue
				}
				want, err := q.seq.Next(logits[i*vocab : (i+1)*vocab])
				if err != nil {
					if !errors.Is(err, host.ErrLogits) || ids[i] != AllMasked {
						t.Errorf("vocabulary %d, row %d, token %d: chose %d, the host says %v", vocab, i, n, ids[i], err)
					}
					q.over = true
					continue
				}
				if ids[i] != want.ID {
					t.Fatalf("vocabulary %d, row %d, token %d: chose %d, want %d (%+v)", vocab, i, n, ids[i], want.ID, q.params)
				}
				if q.params.Logprobs >= 0 && math.Abs(float64(logprobs[i]-want.Logprob)) > 1e-6*(1+math.Abs(float64(want.Logprob))) {
					t.Errorf("vocabulary %d, row %d: logprob %v, want %v", vocab, i, logprobs[i], want.Logprob)
				}
				q.tokens = append(q.tokens, want.ID)
				chosen++
			}
		}
	}
	if chosen < 250 {
		t.Errorf("%d tokens", chosen)
	}
}

// TestChangedBits: every logit has the host's bits, and values that make a row unusable stay at
// masked tokens.
func TestChangedBits(t *testing.T) {
	c := cudatest.Open(t)
	const vocab = 100
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	change := device.Change{Bias: []device.Bias{{ID: 0, Add: 0.1}, {ID: 7, Add: -3}}, Ends: []int32{7, 9, 10}, Least: 2,
		Repetition: 1.3, Presence: 0.7, Frequency: 0.1, Prompt: 5}
	tokens := []int32{0, 1, 2, 1, 99, 2, 3, 3} // five of the prompt, three of the answer
	words := slices.Concat(change.Encode(), make([]int32, device.ChangeWords-len(change.Encode())), tokens[:7], make([]int32, 9))
	store := c.I32(words, 1, len(words))
	for n, banned := range map[uint64]bool{1: true, 3: false} { // with 6 and 8 tokens
		row := make([]float32, vocab)
		for i := range row {
			row[i] = float32(i%7) - 3.1
		}
		row[9], row[10] = nan, inf
		want := slices.Clone(row)
		want[0] += 0.1
		want[7] -= 3
		if banned {
			want[7] = negInf
		}
		for i := 64; i < 80; i++ {
			want[i] = negInf // masked
		}
		had := tokens[:change.Prompt+int(n)]
		for id := range want {
			times := 0
			for _, a := range had[change.Prompt:] {
				if int(a) == id {
					times++
				}
			}
			if !slices.Contains(had, int32(id)) {
				continue
			}
			if want[id] > 0 {
				want[id] /= 1.3
			} else {
				want[id] *= 1.3
			}
			if times > 0 {
				want[id] -= float32(0.7) + float32(float32(0.1)*float32(times))
			}
		}
		var record [RowBytes]byte
		(&Row{N: n}).Put(record[:])
		x := c.F32(row, 1, vocab)
		changes := Changes{Rows: c.Bytes(record[:]), Table: c.I32([]int32{0, 1}, 1, 2), IDs: c.I32([]int32{had[len(had)-1]}, 1, 1),
			Wanted: c.I32([]int32{0}, 1, 1), Store: store, Masks: c.I32([]int32{-1, -1, -1 << 16, -1, 3, 0, 0, 0}, 1, 8), Limit: time.Minute}
		c.Run(func(l *launch.List) { Change(l, x, &changes) })
		if err := kerneltest.SameBits(c.Floats(x), want); err != nil {
			t.Errorf("after %d tokens: %v", n, err)
		}
		if got := cudatest.Download[int32](c, store.At+4*launch.Ptr(device.ChangeWords+len(had)-1), 1)[0]; got != had[len(had)-1] {
			t.Errorf("token %d of the history is %d", len(had)-1, got)
		}
	}
}
