package expert

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"krater/kernels/device"
	"krater/scheduler/files"
)

// Memory gives access to a device's memory by node, so that experts can be near to the threads of a pool.
type Memory interface {
	// AllocOn is like Device.Alloc, in the memory of a node.
	AllocOn(node, n int) (device.Buffer, error)
	// CopyOn copies src to dst from byte at on, by threads of the node.
	CopyOn(node int, dst device.Buffer, at int, src []byte) error
}

// Placed holds the experts of a model, each in the memory of its pool's node.
type Placed struct {
	layers  [][]device.QExpert
	buffers [][]device.Buffer // by pool
}

// Experts returns the experts of a layer, nil for a dense layer. They are valid until Close.
func (p *Placed) Experts(layer int) []device.QExpert {
	if layer < 0 || layer >= len(p.layers) {
		return nil
	}
	return p.layers[layer]
}

// Buffers returns the memory of a pool's experts, for checking its node.
func (p *Placed) Buffers(pool int) []device.Buffer { return p.buffers[pool] }

// Close frees the memory. No work that uses the experts may be running.
func (p *Placed) Close() {
	for _, buffers := range p.buffers {
		for _, b := range buffers {
			b.Free()
		}
	}
	p.layers, p.buffers = nil, nil
}

// Place copies experts to the nodes of mem that partition names. layers has the
// experts of each layer of the model, nil for a dense layer, in memory that the host
// can address, such as a mapped file. The caller may free that memory when Place has
// returned. Place fills all pools at the same time, one expert per pool at a time.
// After each expert it calls done, unless done is nil, from one goroutine at a time.
// A caller that frees the expert's source in done needs extra memory for only one
// expert per pool. After an error, or if ctx ends, nothing stays allocated.
func Place(ctx context.Context, mem Memory, partition Partition, layers [][]device.QExpert, done func(layer, expert int)) (*Placed, error) {
	p := &Placed{layers: make([][]device.QExpert, len(layers)), buffers: make([][]device.Buffer, partition.Pools)}
	for layer, experts := range layers {
		if len(experts) == 0 {
			continue
		}
		if err := partition.Check(len(experts)); err != nil {
			p.Close()
			return nil, fmt.Errorf("layer %d: %w", layer, err)
		}
		p.layers[layer] = make([]device.QExpert, len(experts))
	}
	var serial sync.Mutex
	told := func(layer, expert int) {
		if done != nil {
			serial.Lock()
			defer serial.Unlock()
			done(layer, expert)
		}
	}
	var pools sync.WaitGroup
	failures := make([]error, partition.Pools)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for pool := range partition.Pools {
		pools.Go(func() {
			failures[pool] = files.Guard(func() error { return p.fill(ctx, mem, partition, pool, layers, told) })
			if failures[pool] != nil {
				cancel(failures[pool])
			}
		})
	}
	pools.Wait()
	if errors.Join(failures...) != nil {
		p.Close()
		return nil, context.Cause(ctx) // what came first, not what it ended
	}
	return p, nil
}

// fill brings all experts of a pool to its node.
func (p *Placed) fill(ctx context.Context, mem Memory, partition Partition, pool int, layers [][]device.QExpert, done func(layer, expert int)) error {
	node := partition.Node(pool)
	for layer, experts := range layers {
		n := 0
		for e := range experts {
			if int(partition.Owner[e]) == pool {
				n += room(&experts[e])
			}
		}
		if n == 0 {
			continue
		}
		b, err := mem.AllocOn(node, n)
		if err != nil {
			return fmt.Errorf("experts of layer %d on node %d: %w", layer, node, err)
		}
		p.buffers[pool] = append(p.buffers[pool], b)
		c := copier{mem: mem, node: node, dst: b}
		for e := range experts {
			if int(partition.Owner[e]) != pool {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			p.layers[layer][e] = device.QExpert{W13: c.matrix(&experts[e].W13), W2: c.matrix(&experts[e].W2), Extra: experts[e].Extra}
			if c.err != nil {
				return fmt.Errorf("expert %d of layer %d: %w", e, layer, c.err)
			}
			done(layer, e)
		}
	}
	return nil
}

// line is the alignment of values, in bytes.
const line = 64

func aligned(n int) int { return (n + line - 1) &^ (line - 1) }

// room returns the size of a copy of an expert, in bytes.
func room(e *device.QExpert) int {
	return aligned(e.W13.ValueBytes()) + aligned(e.W13.ScaleBytes()) + aligned(e.W2.ValueBytes()) + aligned(e.W2.ScaleBytes())
}

// copier lays matrices one after another into a node's buffer.
type copier struct {
	mem  Memory
	node int
	dst  device.Buffer
	at   int
	err  error // the first
}

func (c *copier) matrix(q *device.QMat) device.QMat {
	out := *q
	out.Values, out.ValueAt = c.dst, c.piece(q.Values, q.ValueAt, q.ValueBytes())
	out.Scales, out.ScaleAt = c.dst, c.piece(q.Scales, q.ScaleAt, q.ScaleBytes())
	return out
}

func (c *copier) piece(src device.Buffer, from, n int) int {
	at := c.at
	c.at += aligned(n)
	switch {
	case c.err != nil:
	case src == nil || src.Host() == nil:
		c.err = errors.New("the host cannot address its weights")
	case from < 0 || n > len(src.Host())-from:
		c.err = fmt.Errorf("%d bytes at %d of %d", n, from, len(src.Host()))
	default:
		c.err = c.mem.CopyOn(c.node, c.dst, at, src.Host()[from:from+n])
	}
	return at
}
