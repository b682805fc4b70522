package routing_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"krater/scheduler/heat"
	"krater/scheduler/routing"
)

// header is of layers with experts, topK of them for a token.
func header(layers, experts, topK int) routing.Header {
	h := routing.Header{Identity: heat.Identity{1, 2, 3}, Shape: heat.Shape{Experts: experts, TopK: topK}}
	for l := range layers {
		h.Layers = append(h.Layers, int32(l+1))
	}
	return h
}

// router chooses experts by a distribution that is the same for all layers, whose ranks belong to other
// experts in each.
type router struct {
	h     routing.Header
	share []float64
	order [][]int // by layer: the expert of each rank
	r     *rand.Rand
	drift int // tokens after which the hottest quarter changes places with another; 0: never
	at    int
}

func newRouter(h routing.Header, share []float64, drift int) *router {
	g := &router{h: h, share: share, drift: drift, r: rand.New(rand.NewPCG(1, 7))}
	for range h.Layers {
		g.order = append(g.order, g.r.Perm(h.Experts))
	}
	return g
}

// zipf gives the hottest quarter of experts half of the work.
func zipf(experts int) []float64 {
	low, high := 0.0, 8.0
	for range 60 {
		mid, hot, all := (low+high)/2, 0.0, 0.0
		for i := range experts {
			x := math.Pow(float64(i+1), -mid)
			if all += x; i < experts/4 {
				hot += x
			}
		}
		if hot < all/2 {
			low = mid
		} else {
			high = mid
		}
	}
	share := make([]float64, experts)
	for i := range share {
		share[i] = math.Pow(float64(i+1), -low)
	}
	return share
}

// uniform gives all experts the same work.
func uniform(experts int) []float64 { return slices.Repeat([]float64{1}, experts) }

// token is the choices of the next token: without putting back, by Gumbel's maximum.
func (g *router) token(ids []uint16) []uint16 {
	if g.drift > 0 && g.at > 0 && g.at%g.drift == 0 {
		for _, order := range g.order {
			n := len(order) / 4
			other := n * (1 + g.r.IntN(3))
			for i := range n {
				order[i], order[other+i] = order[other+i], order[i]
			}
		}
	}
	g.at++
	keys := make([]float64, g.h.Experts)
	for _, order := range g.order {
		for i, p := range g.share {
			keys[i] = math.Log(p) - math.Log(-math.Log(g.r.Float64()))
		}
		for range g.h.TopK {
			i := 0
			for j, k := range keys {
				if k > keys[i] {
					i = j
				}
			}
			keys[i] = math.Inf(-1)
			ids = append(ids, uint16(order[i]))
		}
	}
	return ids
}

// batches are tokens one by one, or several in a batch.
func (g *router) batches(tokens, rows int) (list []routing.Batch) {
	for range tokens / rows {
		b := routing.Batch{Decode: true, Rows: rows}
		for range rows {
			b.IDs = g.token(b.IDs)
		}
		list = append(list, b)
	}
	return list
}

// write makes the bytes of a file.
func write(t testing.TB, h routing.Header, list []routing.Batch) []byte {
	t.Helper()
	var file bytes.Buffer
	w, err := routing.NewWriter(&file, h)
	for i := 0; i < len(list) && err == nil; i++ {
		err = w.Write(&list[i])
	}
	if err == nil {
		err = w.Flush()
	}
	if err != nil || w.Size() != int64(file.Len()) {
		t.Fatalf("%v; %d bytes, the writer says %d", err, file.Len(), w.Size())
	}
	return file.Bytes()
}

// read gives all batches of a file, and why there are no more.
func read(file []byte) (h routing.Header, list []routing.Batch, err error) {
	r, err := routing.NewReader(bytes.NewReader(file))
	if err != nil {
		return h, nil, err
	}
	for {
		var b routing.Batch
		if err := r.Next(&b); err != nil {
			return r.Header, list, err
		}
		list = append(list, b)
	}
}

// TestFile: what is written is read again, batches of many blocks too. A file that is cut gives the
// batches before the cut and says that it is damaged, unless the cut is between batches; no changed byte goes unnoticed.
func TestFile(t *testing.T) {
	h := header(3, 8, 2)
	g := newRouter(h, uniform(8), 0)
	list := g.batches(6, 2)
	list[1].Decode = false
	big := routing.Batch{Rows: 200_000}
	for range big.Rows * len(h.Layers) * h.TopK {
		big.IDs = append(big.IDs, uint16(g.r.IntN(8)))
	}
	list = append(list, big)
	file := write(t, h, list)
	got, again, err := read(file)
	if err != io.EOF || !slices.Equal(got.Layers, h.Layers) || got.Identity != h.Identity || got.Experts != 8 || got.TopK != 2 {
		t.Fatalf("%v, %+v", err, got)
	}
	same := func(a, b routing.Batch) bool {
		return a.Rows == b.Rows && a.Decode == b.Decode && slices.Equal(a.IDs, b.IDs)
	}
	if !slices.EqualFunc(again, list, same) {
		t.Fatal("other batches")
	}
	small := write(t, h, list[:3])
	whole := 0
	for n := range len(small) {
		_, part, err := read(small[:n])
		if err == io.EOF {
			whole++
		} else if !errors.Is(err, routing.ErrDamaged) && !errors.Is(err, routing.ErrFormat) {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if !slices.EqualFunc(part, list[:len(part)], same) {
			t.Fatalf("%d bytes: other batches", n)
		}
	}
	if whole != 3 {
		t.Errorf("%d cuts look whole, want 3: after the header and two batches", whole)
	}
	for i := range small {
		changed := slices.Clone(small)
		changed[i] ^= 0x10
		if _, _, err := read(changed); err == io.EOF {
			t.Errorf("a changed byte %d goes unnoticed", i)
		}
	}
}

// TestRefused: shapes and batches that no model has.
func TestRefused(t *testing.T) {
	for _, h := range []routing.Header{header(0, 8, 2), header(3, 8, 9), header(3, 0, 0), header(4000, 64, 32)} {
		if _, err := routing.NewWriter(io.Discard, h); !errors.Is(err, heat.ErrShape) {
			t.Errorf("%+v: %v", h.Shape, err)
		}
	}
	w, err := routing.NewWriter(io.Discard, header(2, 8, 1))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range []routing.Batch{{}, {Rows: 1}, {Rows: 1, IDs: []uint16{1, 8}}, {Rows: 2, IDs: []uint16{1, 2}}} {
		if err := w.Write(&b); !errors.Is(err, routing.ErrBatch) {
			t.Errorf("%+v: %v", b, err)
		}
	}
}

// TestCreate: only a trace is overwritten.
func TestCreate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	for range 2 {
		f, err := routing.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		f.Write(write(t, header(1, 4, 1), nil))
		f.Close()
	}
	if err := os.WriteFile(path, []byte("a letter to a friend"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := routing.Create(path); !errors.Is(err, routing.ErrFormat) {
		t.Errorf("%v", err)
	}
	if text, _ := os.ReadFile(path); string(text) != "a letter to a friend" {
		t.Errorf("the file is %q", text)
	}
}

// FuzzReader: no file makes the reader panic or use much memory, and what it accepts it can write again.
func FuzzReader(f *testing.F) {
	h := header(3, 8, 2)
	file := write(f, h, newRouter(h, zipf(8), 0).batches(8, 2))
	f.Add(file)
	f.Add(file[:len(file)-3])
	f.Add(file[:70])
	f.Fuzz(func(t *testing.T, data []byte) {
		h, list, err := read(data)
		if err == io.EOF && !bytes.Equal(write(t, h, list), data) {
			t.Error("written again it differs")
		}
	})
}

// replay runs batches against a policy.
func replay(t testing.TB, h routing.Header, list []routing.Batch, policy string, slots, most, warm int) routing.Result {
	t.Helper()
	next := 0
	p, err := routing.NewPolicy(policy, &h, slots, routing.Counts(&h, list), func() (*routing.Batch, error) {
		if next == len(list) {
			return nil, io.EOF
		}
		next++
		return &list[next-1], nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r := routing.Replay{Header: h, Slots: slots, Most: most, Warm: warm, Policy: p, Interval: 16}
	for i := range list {
		r.Step(&list[i])
	}
	return r.Result()
}

// shapes are of layers, experts and choices.
var shapes = map[string]routing.Header{
	"deepseek-v2-lite": header(26, 64, 6), "qwen3-30b-a3b": header(48, 128, 8), "krater-tiny": header(6, 32, 4),
}

// TestLearned: with a quarter of the experts in memory, and moves of a fortieth of it a step, what is learned
// reaches 0.95 of the oracle's hits where routing is stationary, 0.85 where the hot quarter changes every 256 tokens,
// and 64 tokens after a change 0.9 of the hits before it. Where all experts are equal nothing is gained by moves, so
// there are few.
func TestLearned(t *testing.T) {
	for name, h := range shapes {
		if testing.Short() && name != "krater-tiny" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			slots := len(h.Layers) * h.Experts / 4
			most := max(1, slots/40)
			for _, x := range []struct {
				what  string
				share []float64
				drift int
				want  float64 // of the oracle's hits
			}{
				{"zipf", zipf(h.Experts), 0, 0.95}, {"zipf with drift", zipf(h.Experts), 256, 0.85}, {"uniform", uniform(h.Experts), 0, 0},
			} {
				list := newRouter(h, x.share, x.drift).batches(2048, 1)
				got := replay(t, h, list, "learned", slots, most, 256)
				best := replay(t, h, list, "oracle", slots, most, 256)
				t.Logf("%s: %.3f of reads hit, the oracle's %.3f: %.3f of them; %.2f moves a step, the oracle's %.2f", x.what,
					got.Share(), best.Share(), got.Share()/best.Share(), float64(got.Moves)/float64(got.Batches), float64(best.Moves)/float64(best.Batches))
				if got.Share() < x.want*best.Share() {
					t.Errorf("%s: %.3f of the oracle's hits, want %.2f", x.what, got.Share()/best.Share(), x.want)
				}
				if x.drift == 0 {
					if most := 0.2 * float64(h.TopK*len(h.Layers)); float64(got.Moves) > most*float64(got.Batches)/10 {
						t.Errorf("%s: %d moves in %d batches", x.what, got.Moves, got.Batches)
					}
					continue
				}
				before, after := around(got.Curve, x.drift/16)
				t.Logf("%s: before a change %.3f hit, 64 tokens after it %.3f", x.what, before, after)
				if after < 0.9*before {
					t.Errorf("%s: 64 tokens after a change %.3f hit, before it %.3f", x.what, after, before)
				}
			}
		})
	}
}

// around is the share of hits in the 32 tokens before changes, and in the 16 tokens from the 64th after them.
func around(curve []routing.Point, period int) (before, after float64) {
	var b, a routing.Point
	for at := 2 * period; at+period <= len(curve); at += period {
		for _, p := range curve[at-2 : at] {
			b.Reads, b.Hits = b.Reads+p.Reads, b.Hits+p.Hits
		}
		a.Reads, a.Hits = a.Reads+curve[at+4].Reads, a.Hits+curve[at+4].Hits
	}
	return float64(b.Hits) / float64(b.Reads), float64(a.Hits) / float64(a.Reads)
}

// TestPolicies: no policy gets more hits than the oracle, and with room for all experts each gets all hits
// after the first reads.
func TestPolicies(t *testing.T) {
	h := shapes["krater-tiny"]
	all := len(h.Layers) * h.Experts
	list := newRouter(h, zipf(h.Experts), 128).batches(1024, 2)
	best := replay(t, h, list, "oracle", all/4, 4, 128)
	for _, name := range routing.Names {
		r := replay(t, h, list, name, all/4, 4, 128)
		t.Logf("%s: %.3f", name, r.Share())
		if r.Share() > best.Share() || r.Hits == 0 {
			t.Errorf("%s has %.3f hits, the oracle %.3f", name, r.Share(), best.Share())
		}
		if r := replay(t, h, list, name, all, all, 512); r.Share() < 0.999 {
			t.Errorf("%s: %.4f hits with room for all", name, r.Share())
		}
		if r := replay(t, h, list, name, 0, 4, 0); r.Hits+r.Moves > 0 {
			t.Errorf("%s without slots: %+v", name, r)
		}
	}
}

// TestReadCurve: the curve of a trace has the shares of hits that replays of learned have, and its counts.
func TestReadCurve(t *testing.T) {
	h := header(3, 16, 2)
	list := newRouter(h, zipf(16), 0).batches(700, 1)
	path := filepath.Join(t.TempDir(), "trace")
	// Batches of several tokens are taken apart.
	joined := []routing.Batch{{Rows: 100}}
	for i := range 100 {
		joined[0].IDs = append(joined[0].IDs, list[i].IDs...)
	}
	if err := os.WriteFile(path, write(t, h, append(joined, list[100:]...)), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := routing.ReadCurve(path, []float64{0.25, 0.5, 1})
	if err != nil || c.Tokens != 700 || c.TopK != 2 {
		t.Fatalf("%+v, %v", c, err)
	}
	for i, slots := range []int{12, 24, 48} {
		p, err := routing.NewPolicy("learned", &h, slots, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		r := routing.Replay{Header: h, Slots: slots, Most: 1, Policy: p}
		for j := range list {
			r.Step(&list[j])
		}
		if x := r.Result(); x.Share() != c.Hits[i].Share() || x.Share() < 0.3 {
			t.Errorf("%d slots: %v, the replay has %v", slots, c.Hits[i], x.Share())
		}
	}
	sum := uint32(0)
	for _, layer := range c.Counts {
		for _, n := range layer {
			sum += n
		}
	}
	if sum != 700*3*2 {
		t.Errorf("%d choices", sum)
	}
	if err := os.WriteFile(path, write(t, h, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := routing.ReadCurve(path, []float64{0.5}); err == nil {
		t.Error("a trace without choices has a curve")
	}
}
