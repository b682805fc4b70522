package kvblocks

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func allocs(t *testing.T, p *Pool, n int) (ids []int32) {
	t.Helper()
	for range n {
		id, place := p.Alloc()
		if place >= 0 {
			t.Fatalf("block %d comes with place %d", id, place)
		}
		ids = append(ids, id)
	}
	return ids
}

func check(t *testing.T, p *Pool) {
	t.Helper()
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestOrder: 0, 1, 2, ... first, then what was freed last, in the order it was handed out.
func TestOrder(t *testing.T) {
	p := New(Config{Blocks: 6, BlockTokens: 2})
	if got := allocs(t, p, 4); !slices.Equal(got, []int32{0, 1, 2, 3}) {
		t.Fatalf("first are %v", got)
	}
	p.Free([]int32{1, 3})
	if got := allocs(t, p, 3); !slices.Equal(got, []int32{1, 3, 4}) {
		t.Fatalf("then %v", got)
	}
	if p.Used() != 5 || p.Available() != 1 || p.Total() != 6 {
		t.Fatalf("%d used, %d available of %d", p.Used(), p.Available(), p.Total())
	}
	check(t, p)
}

// TestWrongFree: books that are wrong end at once.
func TestWrongFree(t *testing.T) {
	for name, wrong := range map[string]func(*Pool){
		"not held": func(p *Pool) { p.Free([]int32{1}) },
		"twice":    func(p *Pool) { p.Free([]int32{0, 0}) },
		"no block": func(p *Pool) { p.Free([]int32{9}) },
		"negative": func(p *Pool) { p.Hold(-1) },
		"no room":  func(p *Pool) { p.Alloc(); p.Alloc() },
	} {
		p := New(Config{Blocks: 2, BlockTokens: 1})
		p.Alloc()
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			wrong(p)
		}()
	}
}

// chain caches tokens, a block for each two, and returns the identities.
func chain(t *testing.T, p *Pool, root uint64, tokens ...int32) (blocks []int32, serials []uint64) {
	t.Helper()
	link := root
	for i := 0; i < len(tokens); i += 2 {
		b, _ := p.Alloc()
		link = p.Put(b, link, tokens[i:i+2])
		blocks, serials = append(blocks, b), append(serials, link)
	}
	return blocks, serials
}

// TestIdentity: a block is found by its tokens after those of its parent alone.
func TestIdentity(t *testing.T) {
	p := New(Config{Blocks: 8, BlockTokens: 2})
	root, other := p.Open([32]byte{1}), p.Open([32]byte{2})
	blocks, serials := chain(t, p, root, 5, 6, 7, 8)
	for _, c := range []struct {
		parent uint64
		tokens []int32
		want   int32
	}{
		{root, []int32{5, 6}, blocks[0]}, {serials[0], []int32{7, 8}, blocks[1]},
		{other, []int32{5, 6}, -1}, {root, []int32{6, 5}, -1}, {root, []int32{7, 8}, -1}, {serials[1], []int32{7, 8}, -1}, {root, []int32{5}, -1},
	} {
		if got := p.Find(c.parent, c.tokens); got != c.want {
			t.Errorf("%v after %d is page %d, want %d", c.tokens, c.parent, got, c.want)
		}
	}
	// An equal hash is not enough.
	if got := p.find(p.table.hash(root, []int32{5, 6}), root, []int32{5, 7}); got != -1 {
		t.Errorf("other tokens with the hash of block 0 are page %d", got)
	}
	if got := p.find(p.table.hash(root, []int32{5, 6}), other, []int32{5, 6}); got != -1 {
		t.Errorf("another parent with the hash of block 0 is page %d", got)
	}
	// A second block with the same tokens has no identity of its own.
	b, _ := p.Alloc()
	if got := p.Put(b, root, []int32{5, 6}); got != serials[0] || p.Serial(b) != 0 {
		t.Errorf("a copy of block 0 is %d, its identity %d, want %d and none", got, p.Serial(b), serials[0])
	}
	check(t, p)
}

// TestLeastRecentlyUsed: a block that is not held stays until nothing is free; then the one idle
// longest goes, of one prefix the end first, and what is held never.
func TestLeastRecentlyUsed(t *testing.T) {
	p := New(Config{Blocks: 5, BlockTokens: 2})
	root := p.Open([32]byte{})
	a, _ := chain(t, p, root, 1, 1, 2, 2)
	b, _ := chain(t, p, root, 3, 3, 4, 4)
	p.Free(a)
	p.Free(b)
	p.Hold(a[0])
	p.Hold(a[1])
	p.Free(a[1:]) // used since
	if p.Available() != 4 || p.Idle() != 3 {
		t.Fatalf("%d available, %d idle", p.Available(), p.Idle())
	}
	if got, want := allocs(t, p, 4), []int32{4, b[1], b[0], a[1]}; !slices.Equal(got, want) {
		t.Errorf("handed out %v, want %v", got, want)
	}
	if p.Find(root, []int32{1, 1}) != a[0] || p.Find(root, []int32{3, 3}) != -1 {
		t.Error("the wrong blocks are forgotten")
	}
	check(t, p)
}

// TestRoots: a domain exists as long as it is open or has blocks.
func TestRoots(t *testing.T) {
	p := New(Config{Blocks: 2, BlockTokens: 2})
	root := p.Open([32]byte{1})
	blocks, _ := chain(t, p, root, 1, 2)
	p.Close(root)
	if again := p.Open([32]byte{1}); again != root || p.Find(again, []int32{1, 2}) != blocks[0] {
		t.Fatal("the domain was forgotten with a block in it")
	}
	p.Close(root)
	p.Free(blocks)
	allocs(t, p, 2)
	if n := len(p.roots.byDomain); n != 0 {
		t.Errorf("%d domains left", n)
	}
	check(t, p)
}

// TestHostMemory: an idle block that is handed out goes to host memory, is found there when
// it was saved, and comes back with its identity.
func TestHostMemory(t *testing.T) {
	p := New(Config{Blocks: 1, BlockTokens: 2, RAM: 1})
	root := p.Open([32]byte{})
	blocks, serials := chain(t, p, root, 1, 2)
	p.Free(blocks)
	b, place := p.Alloc()
	if b != 0 || place != 0 || p.Find(root, []int32{1, 2}) != -1 {
		t.Fatalf("block %d, place %d, found too early: %d", b, place, p.Find(root, []int32{1, 2}))
	}
	p.Saved(place, true)
	page := p.Find(root, []int32{1, 2})
	if p.Place(page) != 0 || p.Serial(page) != serials[0] || p.Places() != 1 {
		t.Fatalf("page %d, identity %d, want place 0 with %d", page, p.Serial(page), serials[0])
	}
	p.Pin(0)
	p.Loaded(0, b, false)
	if p.Find(root, []int32{1, 2}) != page {
		t.Fatal("a load that failed lost what it read")
	}
	p.Pin(0)
	p.Loaded(0, b, true)
	if p.Find(root, []int32{1, 2}) != b || p.Serial(b) != serials[0] || p.Places() != 0 {
		t.Fatalf("loaded: %d", p.Find(root, []int32{1, 2}))
	}
	p.Free([]int32{b})
	b, place = p.Alloc()
	p.Saved(place, false)
	if p.Find(root, []int32{1, 2}) != -1 || p.Places() != 0 {
		t.Error("a save that failed is found")
	}
	p.Free([]int32{b})
	check(t, p)
}

// TestLoadedTwice: of two loads from one place the first takes the identity, and the place is
// free after the second.
func TestLoadedTwice(t *testing.T) {
	p := New(Config{Blocks: 2, BlockTokens: 2, RAM: 1})
	root := p.Open([32]byte{})
	blocks, _ := chain(t, p, root, 1, 2)
	x := allocs(t, p, 1)
	p.Free(blocks)
	_, place := p.Alloc()
	p.Saved(place, true)
	p.Pin(place)
	p.Pin(place)
	p.Loaded(place, x[0], true)
	if p.Places() != 1 || p.Find(root, []int32{1, 2}) != x[0] {
		t.Fatalf("%d places, page %d", p.Places(), p.Find(root, []int32{1, 2}))
	}
	check(t, p)
	p.Loaded(place, blocks[0], true)
	if p.Places() != 0 || p.Serial(blocks[0]) != 0 {
		t.Fatalf("%d places, identity %d", p.Places(), p.Serial(blocks[0]))
	}
	check(t, p)
}

// TestSnapshots: one belongs to the block it was taken at the end of, goes with it, and is
// taken from the block that used it longest ago.
func TestSnapshots(t *testing.T) {
	p := New(Config{Blocks: 3, BlockTokens: 2, RAM: 1, Snapshots: 2})
	root := p.Open([32]byte{})
	blocks, _ := chain(t, p, root, 1, 2, 3, 4, 5, 6)
	for _, b := range blocks[:2] {
		if !p.Kept(p.TakeSnapshot(), b, true) {
			t.Fatal("not kept")
		}
	}
	p.PinSnapshot(p.Snapshot(blocks[0]))
	p.UnpinSnapshot(p.Snapshot(blocks[0])) // used since
	s := p.TakeSnapshot()
	if p.Snapshot(blocks[1]) != -1 || p.Snapshot(blocks[0]) < 0 {
		t.Fatal("the wrong snapshot was taken away")
	}
	if p.Kept(s, blocks[2], false) || p.Snapshots() != 1 {
		t.Fatal("a snapshot that was not written is kept")
	}
	check(t, p)
	p.Free(blocks[:1])
	_, place := p.Alloc()
	p.Saved(place, true)
	page := p.Find(root, []int32{1, 2})
	if p.Place(page) != place || p.Snapshot(page) < 0 {
		t.Fatal("the snapshot stayed behind")
	}
	p.PinSnapshot(p.Snapshot(page))
	snap := p.Snapshot(page)
	p.detach(page)
	if p.Snapshots() != 1 {
		t.Fatal("a snapshot that is read is free")
	}
	p.UnpinSnapshot(snap)
	if p.Snapshots() != 0 {
		t.Fatal("a snapshot is left")
	}
	check(t, p)
}

// TestClear forgets everything and gives nothing away that is held.
func TestClear(t *testing.T) {
	p := New(Config{Blocks: 3, BlockTokens: 2, RAM: 2, Snapshots: 1})
	root := p.Open([32]byte{})
	blocks, _ := chain(t, p, root, 1, 2, 3, 4)
	p.Kept(p.TakeSnapshot(), blocks[0], true)
	gen := p.Generation(blocks[0])
	p.Free(blocks[1:])
	p.Clear()
	if p.Used() != 1 || p.Idle() != 0 || p.Snapshots() != 0 || p.Places() != 0 || p.Find(root, []int32{1, 2}) != -1 || p.Generation(blocks[0]) == gen {
		t.Errorf("%d used, %d idle, %d snapshots, %d places", p.Used(), p.Idle(), p.Snapshots(), p.Places())
	}
	check(t, p)
	p.Free(blocks[:1])
	check(t, p)
}

// TestRandom does what comes and holds every page that is found against the tokens that were
// put into it.
func TestRandom(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 5))
		p := New(Config{Blocks: 1 + rng.IntN(8), BlockTokens: 1, RAM: rng.IntN(5), Snapshots: rng.IntN(3)})
		root := p.Open([32]byte{})
		text := map[uint64]string{root: ""} // of an identity
		var held []int32
		for range 300 {
			switch rng.IntN(4) {
			case 0, 1:
				if p.Available() == 0 {
					break
				}
				b, place := p.Alloc()
				held = append(held, b)
				if place >= 0 {
					p.Saved(place, rng.IntN(4) > 0)
				}
				link, words := walk(p, root, rng)
				if page := p.Find(link, words[len(words)-1:]); page >= 0 {
					if place := p.Place(page); place >= 0 {
						p.Pin(place)
						p.Loaded(place, b, true)
					}
					break
				}
				if text[link] == spell(words[:len(words)-1]) {
					text[p.Put(b, link, words[len(words)-1:])] = spell(words)
				}
			case 2:
				if len(held) > 0 {
					i := rng.IntN(len(held))
					p.Free(held[i : i+1])
					held = slices.Delete(held, i, i+1)
				}
			default:
				link, words := walk(p, root, rng)
				if page := p.Find(link, words[len(words)-1:]); page >= 0 && text[p.Serial(page)] != spell(words) {
					t.Fatalf("seed %d: %v is page %d with %q", seed, words, page, text[p.Serial(page)])
				}
			}
			if err := p.Check(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
}

// walk follows a text of random words as far as it is cached, and one word more.
func walk(p *Pool, root uint64, rng *rand.Rand) (uint64, []int32) {
	link, words := root, []int32{}
	for {
		words = append(words, int32(rng.IntN(2)))
		page := p.Find(link, words[len(words)-1:])
		if page < 0 || len(words) == 6 {
			return link, words
		}
		link = p.Serial(page)
	}
}

func spell(words []int32) string { return strings.Trim(fmt.Sprint(words), "[]") }

// BenchmarkBlock is a block of 16 tokens that is handed out, gets its identity, is found and
// evicted.
func BenchmarkBlock(b *testing.B) {
	p := New(Config{Blocks: 1 << 14, BlockTokens: 16})
	root, tokens, one := p.Open([32]byte{}), make([]int32, 16), make([]int32, 1)
	b.ReportAllocs()
	for i := int32(0); b.Loop(); i++ {
		tokens[3] = i
		one[0], _ = p.Alloc()
		p.Put(one[0], root, tokens)
		p.Free(one)
		if p.Find(root, tokens) != one[0] {
			b.Fatal("not found")
		}
	}
}

// TestFindAlike: complements are other contents for Find and alike for FindAlike.
func TestFindAlike(t *testing.T) {
	p := New(Config{Blocks: 4, BlockTokens: 3})
	root := p.Open([32]byte{})
	block, _ := p.Alloc()
	p.Put(block, root, []int32{1, ^2, ^0})
	for _, c := range []struct {
		tokens      []int32
		find, alike int32
	}{
		{[]int32{1, ^2, ^0}, block, block}, {[]int32{1, 2, 0}, -1, block}, {[]int32{^1, 2, 0}, -1, block}, {[]int32{1, 2, 1}, -1, -1}, {[]int32{1, 3, 0}, -1, -1},
	} {
		if find, alike := p.Find(root, c.tokens), p.FindAlike(root, c.tokens); find != c.find || alike != c.alike {
			t.Errorf("%v: found %d and %d, want %d and %d", c.tokens, find, alike, c.find, c.alike)
		}
	}
	if other, _ := p.Alloc(); p.Put(other, root, []int32{1, 2, 0}) == p.Serial(block) || p.Find(root, []int32{1, 2, 0}) != other {
		t.Error("the complement took the place of the token")
	}
}

// TestWindowBlocks: a window block stays with its page, wherever that goes, until others are needed;
// a block computed again gives its own to the page that has its identity.
func TestWindowBlocks(t *testing.T) {
	p := New(Config{Blocks: 3, BlockTokens: 2, RAM: 1, Windows: 2})
	root := p.Open([32]byte{})
	a, links := chain(t, p, root, 1, 1, 2, 2)
	first, second := p.TakeWindow(a[0]), p.TakeWindow(a[1])
	if p.Window(a[0]) != first || first == second || p.WindowsUsed() != 2 || p.WindowPins(first) != 1 {
		t.Fatalf("window blocks %d and %d, %d used", p.Window(a[0]), p.Window(a[1]), p.WindowsUsed())
	}
	p.UnpinWindow(second, true)
	p.UnpinWindow(first, false) // of no use: handed out before the other
	b, _ := p.Alloc()
	again := p.TakeWindow(b)
	if again != first || p.Window(a[0]) != -1 || p.Window(a[1]) != second {
		t.Fatalf("window block %d, the pages have %d and %d", again, p.Window(a[0]), p.Window(a[1]))
	}
	check(t, p)
	if link := p.Put(b, root, []int32{1, 1}); link != links[0] || p.Window(b) != -1 || p.Window(a[0]) != again {
		t.Fatalf("the block computed again has window block %d, the page %d", p.Window(b), p.Window(a[0]))
	}
	p.UnpinWindow(again, true)
	p.Free([]int32{b})
	p.Free(a)
	check(t, p)
	one, _ := p.Alloc() // what is free
	two, place := p.Alloc()
	if two != a[1] || place != 0 || p.Window(two) != -1 {
		t.Fatalf("block %d, place %d, window block %d", two, place, p.Window(two))
	}
	p.Saved(place, true)
	page := p.Find(links[0], []int32{2, 2})
	if p.Place(page) != 0 || p.Window(page) != second {
		t.Fatalf("page %d has window block %d", page, p.Window(page))
	}
	p.Pin(0)
	p.Loaded(0, two, true)
	if p.Window(two) != second {
		t.Fatalf("a block from host memory has window block %d", p.Window(two))
	}
	check(t, p)
	p.PinWindow(second)
	p.Free([]int32{one, two})
	p.Clear()
	if p.Window(two) != -1 || p.WindowsUsed() != 1 {
		t.Fatalf("window block %d, %d used", p.Window(two), p.WindowsUsed())
	}
	p.UnpinWindow(second, true)
	check(t, p)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a third window block of two")
			}
		}()
		for range 3 {
			p.TakeWindow(first)
		}
	}()
}

// TestResize: blocks beyond the bound are not handed out, those that are held stay until they are freed, and the books
// agree at every step.
func TestResize(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		p := New(Config{Blocks: 12, BlockTokens: 2, RAM: r.IntN(3)})
		root := p.Open([32]byte{1})
		var held []int32
		for range 60 {
			switch r.IntN(4) {
			case 0:
				n := r.IntN(14)
				least := p.Resize(n)
				bound := max(0, min(n, 12))
				for _, b := range held {
					bound = max(bound, int(b)+1)
				}
				if least != bound || p.Usable() != min(n, 12) {
					t.Fatalf("%d of %d blocks belong to the pool, held %v: %d", p.Usable(), n, held, least)
				}
			case 1:
				if len(held) > 0 {
					i := r.IntN(len(held))
					p.Free(held[i : i+1])
					held = slices.Delete(held, i, i+1)
				}
			default:
				if p.Available() == 0 {
					break
				}
				b, place := p.Alloc()
				if place >= 0 {
					p.Saved(place, true)
				}
				if int(b) >= p.Usable() {
					t.Fatalf("block %d of %d", b, p.Usable())
				}
				if held = append(held, b); r.IntN(2) == 0 {
					p.Put(b, root, []int32{r.Int32N(5), r.Int32N(5)})
				}
			}
			if p.Used() != len(held) {
				t.Fatalf("%d used, held %v", p.Used(), held)
			}
			if err := p.Check(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
