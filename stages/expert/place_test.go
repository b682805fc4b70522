package expert

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/internal/hosttest"
)

// nodeMemory is a Memory that notes what belongs where.
type nodeMemory struct {
	mu     sync.Mutex
	bytes  map[int]int // allocated, by node
	freed  map[int]int
	open   map[int]int // copies since the last done, by node
	failAt int         // the allocation that fails, from 1
	allocs int
}

func newNodeMemory() *nodeMemory {
	return &nodeMemory{bytes: map[int]int{}, freed: map[int]int{}, open: map[int]int{}}
}

type nodeBuffer struct {
	hosttest.Buffer
	node int
	mem  *nodeMemory
}

func (b *nodeBuffer) Free() {
	b.mem.mu.Lock()
	defer b.mem.mu.Unlock()
	b.mem.freed[b.node] += b.Size()
}

var errFull = errors.New("full")

func (m *nodeMemory) AllocOn(node, n int) (device.Buffer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.allocs++; m.allocs == m.failAt {
		return nil, errFull
	}
	m.bytes[node] += n
	return &nodeBuffer{make([]byte, n), node, m}, nil
}

func (m *nodeMemory) CopyOn(node int, dst device.Buffer, at int, src []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if on := dst.(*nodeBuffer).node; on != node {
		return fmt.Errorf("a copy by node %d to memory of node %d", node, on)
	}
	m.open[node]++
	copy(dst.Host()[at:at+len(src)], src)
	return nil
}

// banks makes layers of experts whose bytes are random, in one buffer as a
// mapped file is; the first layer is dense.
func banks(layers, experts int) [][]device.QExpert {
	r := rand.New(rand.NewPCG(7, 8))
	all := make([][]device.QExpert, layers)
	for l := 1; l < layers; l++ {
		var file hosttest.Buffer
		matrix := func(rows, cols, bits int) device.QMat {
			q := device.QMat{Layout: tensor.Layout{Format: tensor.Integers(bits).By(32), Rows: rows, Cols: cols}}
			q.ValueAt = len(file)
			q.ScaleAt = q.ValueAt + q.ValueBytes()
			for range q.Bytes() {
				file = append(file, byte(r.Uint32()))
			}
			return q
		}
		for range experts {
			all[l] = append(all[l], device.QExpert{W13: matrix(96, 64, 4), W2: matrix(64, 48, 8)})
		}
		for e := range all[l] {
			x := &all[l][e]
			x.W13.Values, x.W13.Scales, x.W2.Values, x.W2.Scales = file, file, file, file
		}
	}
	return all
}

// contents are the bytes of an expert.
func contents(e device.QExpert) []byte {
	var all []byte
	for _, q := range []device.QMat{e.W13, e.W2} {
		all = append(all, q.Values.Host()[q.ValueAt:q.ValueAt+q.ValueBytes()]...)
		all = append(all, q.Scales.Host()[q.ScaleAt:q.ScaleAt+q.ScaleBytes()]...)
	}
	return all
}

func TestPlace(t *testing.T) {
	const experts = 10
	from := banks(4, experts)
	for _, weights := range [][]int{{1}, {1, 1}, {8, 8, 4}, {1, 1, 1, 1}} {
		p := Spread(experts, weights)
		if len(weights) == 4 {
			p.Nodes = []int{0, 0, 1, 1}
		}
		mem := newNodeMemory()
		told := map[[2]int]bool{}
		placed, err := Place(context.Background(), mem, p, from, func(layer, e int) {
			mem.mu.Lock()
			defer mem.mu.Unlock()
			told[[2]int{layer, e}] = true
			// The other pools of a node may have begun with theirs.
			node := p.Node(int(p.Owner[e]))
			if mem.open[node] -= 4; mem.open[node] < 0 || mem.open[node] > 0 && p.Nodes == nil {
				t.Errorf("%d pieces too many were copied since the expert before", mem.open[node])
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(told) != 3*experts || placed.Experts(0) != nil || placed.Experts(-1) != nil || placed.Experts(4) != nil {
			t.Errorf("%v: %d experts told of", weights, len(told))
		}
		for l := 1; l < 4; l++ {
			for e, got := range placed.Experts(l) {
				want := from[l][e]
				if got.W13.Layout != want.W13.Layout || got.W2.Layout != want.W2.Layout || !slices.Equal(contents(got), contents(want)) {
					t.Fatalf("%v: expert %d of layer %d has changed", weights, e, l)
				}
				if got.W13.ValueAt%64 != 0 || got.W2.ValueAt%64 != 0 {
					t.Errorf("values at %d and %d are not aligned", got.W13.ValueAt, got.W2.ValueAt)
				}
				for _, b := range []device.Buffer{got.W13.Values, got.W13.Scales, got.W2.Values, got.W2.Scales} {
					if node := b.(*nodeBuffer).node; node != p.Node(int(p.Owner[e])) {
						t.Errorf("expert %d of pool %d lies on node %d", e, p.Owner[e], node)
					}
				}
			}
		}
		for pool := range weights {
			n, want := 0, 0
			for _, b := range placed.Buffers(pool) {
				n += b.Size()
			}
			for l := range from {
				for e := range from[l] {
					if int(p.Owner[e]) == pool {
						want += room(&from[l][e])
					}
				}
			}
			if n != want {
				t.Errorf("%v: pool %d has %d bytes, want %d", weights, pool, n, want)
			}
		}
		placed.Close()
		for pool := range weights {
			if mem.freed[pool] != mem.bytes[pool] {
				t.Errorf("%d of %d bytes freed", mem.freed[pool], mem.bytes[pool])
			}
		}
	}
}

// TestPlaceGivesUp: whatever ends it is told, and nothing stays allocated.
func TestPlaceGivesUp(t *testing.T) {
	const experts = 6
	p := Spread(experts, []int{1, 1})
	far := banks(3, experts)
	far[2][3].W2.Scales = nil
	short := banks(3, experts)
	short[2][5].W2.ScaleAt++
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for want, x := range map[string]struct {
		failAt int
		layers [][]device.QExpert
		done   func(layer, e int)
	}{
		"full":                {failAt: 3},
		"the host cannot":     {layers: far},
		"expert 5 of layer 2": {layers: short},
		"6 owners in 2 pools": {layers: banks(2, experts+1)},
		context.Canceled.Error(): {done: func(layer, _ int) {
			if layer == 2 {
				cancel()
			}
		}},
	} {
		mem := newNodeMemory()
		mem.failAt = x.failAt
		if x.layers == nil {
			x.layers = banks(3, experts)
		}
		c := context.Background()
		if x.done != nil {
			c = ctx
		}
		placed, err := Place(c, mem, p, x.layers, x.done)
		if placed != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		for node := range 2 {
			if mem.freed[node] != mem.bytes[node] {
				t.Errorf("%s: %d of %d bytes of node %d freed", want, mem.freed[node], mem.bytes[node], node)
			}
		}
	}
}
