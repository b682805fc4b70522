package kvblocks

import (
	"hash/fnv"
	"slices"
	"testing"
)

// TestDigests: whole blocks of one domain, whatever their numerics, until they are forgotten.
func TestDigests(t *testing.T) {
	p := New(Config{Blocks: 6, BlockTokens: 2})
	mine, others := [32]byte{1}, [32]byte{2}
	root, other := p.Open(mine), p.Open(others)
	held := allocs(t, p, 4)
	link := p.Put(held[0], root, []int32{1, ^2})
	p.Put(held[1], link, []int32{3, 4})
	p.Put(held[2], link, []int32{5}) // a part
	p.Put(held[3], other, []int32{6, 7})
	sums := func(prefixes ...[]byte) (want []uint64) {
		for _, ids := range prefixes {
			h := fnv.New64a()
			for _, id := range ids {
				h.Write([]byte{id, 0, 0, 0})
			}
			want = append(want, h.Sum64())
		}
		slices.Sort(want)
		return want
	}
	for domain, want := range map[[32]byte][]uint64{mine: sums([]byte{1, 2}, []byte{1, 2, 3, 4}), others: sums([]byte{6, 7}), {3}: nil} {
		got := p.Digests(domain)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("domain %d: %x, want %x", domain[0], got, want)
		}
	}
	check(t, p)
	p.Free(held)
	p.Clear()
	if got := p.Digests(mine); len(got) != 0 {
		t.Errorf("%x after everything was forgotten", got)
	}
	check(t, p)
}

// BenchmarkDigests lists the prefixes of a cache of 50,000 blocks, as the schedule actor does for each GET /v1/prefixes.
func BenchmarkDigests(b *testing.B) {
	const blocks = 50000
	p := New(Config{Blocks: blocks, BlockTokens: 2})
	link := p.Open([32]byte{})
	for i := range int32(blocks) {
		block, _ := p.Alloc()
		link = p.Put(block, link, []int32{i, i})
	}
	for b.Loop() {
		if n := len(p.Digests([32]byte{})); n != blocks {
			b.Fatal(n)
		}
	}
}
