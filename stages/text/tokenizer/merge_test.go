package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// naiveMerge does what the definition says: look at all pairs, merge the leftmost of the lowest
// rank, start again.
func naiveMerge(pairs *pairTable, ids []int32) []int32 {
	ids = slices.Clone(ids)
	for {
		best, at := noMerge, -1
		for i := 0; i+1 < len(ids); i++ {
			if v := pairs.get(ids[i], ids[i+1]); v < best {
				best, at = v, i
			}
		}
		if at < 0 {
			return ids
		}
		ids[at] = int32(uint32(best))
		ids = slices.Delete(ids, at+1, at+2)
	}
}

// randomMerges makes a table over few symbols, so that merges get in each other's way. Ids grow
// like texts do: a merged token is longer than its parts.
func randomMerges(r *rand.Rand, symbols, merges int) *pairTable {
	texts := make([]string, symbols)
	ids := map[string]int32{}
	for i := range texts {
		texts[i] = string(rune('a' + i))
		ids[texts[i]] = int32(i)
	}
	t := newPairTable(1)
	for rank := range merges {
		left, right := r.IntN(len(texts)), r.IntN(len(texts))
		text := texts[left] + texts[right]
		id, ok := ids[text]
		if !ok {
			id = int32(len(texts))
			texts, ids[text] = append(texts, text), id
		}
		t.set(int32(left), int32(right), id, rank)
	}
	return t
}

func TestMergeEqualsDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		symbols := 1 + r.IntN(4)
		table := randomMerges(r, symbols, 1+r.IntN(60))
		for _, n := range []int{0, 1, 2, 3, 7, shortPiece - 1, shortPiece, shortPiece + 1, 200} {
			ids := make([]int32, n)
			for i := range ids {
				ids[i] = int32(r.IntN(symbols))
			}
			want := naiveMerge(table, ids)
			for name, merge := range map[string]func(*scratch) []int32{"short": table.mergeShort, "long": table.mergeLong, "either": table.merge} {
				if got := merge(&scratch{ids: slices.Clone(ids)}); !slices.Equal(got, want) {
					t.Fatalf("%s of %v: %v, want %v", name, ids, got, want)
				}
			}
		}
	}
}

// Scratch memory of a longer piece must not show in a shorter one.
func TestMergeReusesScratch(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	table := randomMerges(r, 3, 40)
	var sc scratch
	for range 500 {
		n := r.IntN(300)
		sc.ids = sc.ids[:0]
		for range n {
			sc.ids = append(sc.ids, int32(r.IntN(3)))
		}
		want := naiveMerge(table, sc.ids)
		if got := table.merge(&sc); !slices.Equal(got, want) {
			t.Fatalf("%d symbols: %v, want %v", n, got, want)
		}
	}
}

func TestPairTable(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	table, oracle := newPairTable(1), map[[2]int32]uint64{}
	for rank := range 20000 {
		left, right, id := int32(r.IntN(300)), int32(r.IntN(300)), int32(r.IntN(maxID))
		table.set(left, right, id, rank)
		oracle[[2]int32{left, right}] = uint64(rank)<<32 | uint64(id)
	}
	for left := range int32(300) {
		for right := range int32(300) {
			want, ok := oracle[[2]int32{left, right}]
			if !ok {
				want = noMerge
			}
			if got := table.get(left, right); got != want {
				t.Fatalf("%d, %d: %x, want %x", left, right, got, want)
			}
		}
	}
}

// Cutting a text at bounds, and the cache, must not change a token.
func TestBoundsChangeNothing(t *testing.T) {
	for _, name := range []string{"llama2", "gemma3"} {
		t.Run(name, func(t *testing.T) {
			m := family(t, name).model
			if m.bounds == nil {
				t.Fatal("no bounds")
			}
			whole := *m
			whole.bounds = nil
			r := rand.New(rand.NewPCG(9, 10))
			text := strings.ReplaceAll(prose(t), " ", "▁")
			cut := 0
			for i := range 3000 {
				piece := strings.ReplaceAll(randomText(r, 1+r.IntN(40)), " ", "▁")
				if i%3 == 0 {
					from := r.IntN(len(text) - 300)
					piece, _ = validText(text[from:from+r.IntN(300)], nil)
				}
				if piece == "" {
					continue
				}
				if m.bounds.first(piece) < len(piece) {
					cut++
				}
				whole.cache = new(wordCache)
				want := whole.appendPiece(nil, piece, new(scratch))
				if got := m.appendPiece(nil, piece, new(scratch)); !slices.Equal(got, want) {
					t.Fatalf("%q: %v, want %v", piece, got, want)
				}
			}
			if cut < 1000 {
				t.Errorf("only %d of 3000 pieces were cut", cut)
			}
		})
	}
}

func TestCacheIsBoundedAndExact(t *testing.T) {
	c := new(wordCache)
	r := rand.New(rand.NewPCG(11, 12))
	for range 4 * cacheSlots {
		word := strings.Repeat("x", r.IntN(3)) + string(rune('a'+r.IntN(26))) + string(rune('a'+r.IntN(26)))
		ids := []int32{int32(len(word)), int32(word[len(word)-1])}
		h := r.Uint64() & 7 // collisions on purpose
		if e := c.get(word, h); e != nil && !slices.Equal(e.ids[:e.idsLen], ids) {
			t.Fatalf("%q: %v, want %v", word, e.ids[:e.idsLen], ids)
		}
		c.put(word, h, ids)
		if e := c.get(word, h); e == nil || !slices.Equal(e.ids[:e.idsLen], ids) {
			t.Fatalf("%q is not there after put", word)
		}
	}
	long := strings.Repeat("y", cacheKeyMax+1)
	c.put(long, 1, []int32{1})
	c.put("many", 2, make([]int32, cacheIDsMax+1))
	if c.get("many", 2) != nil {
		t.Error("a word with too many tokens was kept")
	}
}
