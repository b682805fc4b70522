package group

import (
	"fmt"

	"krater/kernels/device"
	"krater/stages"
)

// hostBlocks is the host's part of a layer's cache: blocks that were evicted and may come back.
type hostBlocks struct {
	parts   [2]device.Buffer // of rows and of their scales
	release []func() error   // unpin them
}

// KeepBlocks allocates limits.HostBlocks blocks of every layer in memory of host, which the host
// addresses. The memory is pinned if the group's device is an accelerator. refused is the first
// reason why some of it could not be pinned: copies of it are slower. KeepBlocks is called once,
// before any batch.
func (g *Group) KeepBlocks(host device.Device) (refused, err error) {
	for i := range g.caches {
		g.hosted = append(g.hosted, hostBlocks{})
		why, err := g.keep(&g.hosted[i], &g.caches[i], host)
		if err != nil {
			return nil, fmt.Errorf("group: KV blocks of layer %d in host memory: %w", g.First+i, err)
		}
		if refused == nil {
			refused = why
		}
	}
	return refused, nil
}

func (g *Group) keep(h *hostBlocks, c *device.KV, host device.Device) (refused, err error) {
	for p, m := range [...]device.Mat{c.Mat, c.Scales} {
		if m.Zero() {
			continue
		}
		b, err := host.Alloc(g.lim.HostBlocks * block(m, g.lim.Blocks, 0).Bytes())
		if err != nil {
			return nil, err
		}
		h.parts[p] = b
		if g.accel != nil {
			if release, err := g.accel.Pin(b.Host()); err != nil {
				refused = err
			} else {
				h.release = append(h.release, release)
			}
		}
	}
	return refused, nil
}

// close frees the memory. No copies may be under way.
func (h *hostBlocks) close() {
	for _, release := range h.release {
		_ = release() // a lost device has released it already
	}
	for _, b := range h.parts {
		if b != nil {
			b.Free()
		}
	}
	*h = hostBlocks{}
}

// Move does the moves of a batch in the caches of all layers. It comes before the batch's first
// layer, even if the batch's requests have ended: the scheduler relies on it.
func (g *Group) Move(s device.Stream, st *stages.State) {
	for rest := st.Moves; len(rest) > 0; {
		alike := 1
		for alike < len(rest) && rest[alike].Kind == rest[0].Kind {
			alike++
		}
		if rest[0].Kind <= stages.CopyWindow {
			g.moveAll(s, rest[:alike], st.Timing)
		}
		rest = rest[alike:]
	}
	g.moveStates(s, st)
}

// moveAll does moves of one kind. Compute waits for copies to the host and back, which are on its
// stream.
func (g *Group) moveAll(s device.Stream, moves []stages.Move, timing *device.Timing) {
	span := device.TimedSpan{Kind: device.CopyIn, Layer: -1, Stalls: true}
	switch moves[0].Kind {
	case stages.Copy, stages.CopyWindow:
		timing = nil
	case stages.Save:
		span.Kind = device.CopyOut
	}
	began := timing.Begin(s, span.Layer)
	if n, ok := g.moveAtOnce(s, moves); ok {
		span.Bytes = n
		timing.End(s, began, span)
		return
	}
	caches, blocks := g.caches, g.lim.Blocks
	if moves[0].Kind == stages.CopyWindow {
		caches, blocks = g.windows, g.lim.WindowBlocks
	}
	for _, m := range moves { // copies within the device are one list
		for i := range caches {
			for p, c := range [...]device.Mat{caches[i].Mat, caches[i].Scales} {
				if !c.Zero() {
					g.move(s, m, c, blocks, i, p)
					span.Bytes += int64(block(c, blocks, 0).Bytes())
				}
			}
		}
	}
	g.send(s)
	timing.End(s, began, span)
}

// moveAtOnce does moves to the host or back with one operator if the device can, and returns their
// bytes.
func (g *Group) moveAtOnce(s device.Stream, moves []stages.Move) (bytes int64, ok bool) {
	if g.accel == nil || moves[0].Kind != stages.Save && moves[0].Kind != stages.Load {
		return 0, false
	}
	b := &g.blocks
	b.Save, b.From, b.To = moves[0].Kind == stages.Save, b.From[:0], b.To[:0]
	for _, m := range moves {
		b.From, b.To = append(b.From, m.From), append(b.To, m.To)
	}
	if len(b.Parts) == 0 {
		for i := range g.caches {
			for p, m := range [...]device.Mat{g.caches[i].Mat, g.caches[i].Scales} {
				if !m.Zero() {
					b.Parts = append(b.Parts, device.BlockPart{Cache: m, Host: g.hosted[i].parts[p].Host(), Bytes: block(m, g.lim.Blocks, 0).Bytes()})
				}
			}
		}
	}
	for i := range b.Parts {
		bytes += int64(b.Parts[i].Bytes * len(moves))
	}
	return bytes, g.accel.MoveBlocks(s, b)
}

// block is block i of a cache that has n.
func block(cache device.Mat, n int, i int32) device.Mat {
	rows := cache.Rows / n
	return cache.RowRange(int(i)*rows, (int(i)+1)*rows)
}

// move does a move in a part of a layer's cache, which has the given number of blocks.
func (g *Group) move(s device.Stream, m stages.Move, cache device.Mat, blocks, layer, part int) {
	kept := func(i int32) []byte {
		n := block(cache, blocks, 0).Bytes()
		return g.hosted[layer].parts[part].Host()[int(i)*n : (int(i)+1)*n]
	}
	switch m.Kind {
	case stages.Copy, stages.CopyWindow:
		g.program.CopyRows(block(cache, blocks, m.To), block(cache, blocks, m.From))
	case stages.Save:
		s.CopyOut(kept(m.To), block(cache, blocks, m.From))
	case stages.Load:
		s.CopyIn(block(cache, blocks, m.To), kept(m.From))
	}
}
