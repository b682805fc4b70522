package group

import (
	"fmt"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/arena"
	"krater/stages/model"
)

// state holds one State of a layer's mixer for all sequences, outside KV blocks.
type state struct {
	model.State
	running   device.KV // [(sequences+1)*rows, width]; those of the last one stay zeros
	snapshots device.KV // [snapshots*rows, width]
}

// InBlocks reports whether a state's rows lie in KV blocks of the device's memory.
func InBlocks(s *model.State, lim *stages.Limits) bool {
	return s.Kind == model.Paged && !(s.Window > 0 && lim.WindowBlocks > 0) && !(s.Chosen && lim.ChosenRow > 0)
}

// alloc allocates what a layer keeps. Rows in KV blocks lie in shared, unless that is nil.
func (g *Group) alloc(list []model.State, kvType tensor.DType, shared *arena.Arena) error {
	var kept []device.KV
	for _, s := range list {
		n, windowed := g.lim.Blocks*s.BlockRows(g.lim.BlockTokens), s.Window > 0 && g.lim.WindowBlocks > 0
		switch {
		case s.Kind != model.Paged:
			n = (g.lim.Seqs + 1) * s.Rows
		case windowed:
			n = g.lim.WindowSlots()
		}
		alloc := g.dev.Alloc
		if s.Chosen && g.lim.ChosenRow > 0 && g.accel != nil {
			alloc = g.accel.AllocHost
		}
		if shared != nil && InBlocks(&s, &g.lim) {
			at, err := shared.Cache(s.BlockRows(g.lim.BlockTokens) * s.Bytes(kvType))
			if err != nil {
				return err
			}
			rows := device.NewMat(shared.Buf, s.Type(kvType), n, s.Width)
			rows.Off = at
			c := device.KV{Mat: rows}
			kept, g.caches = append(kept, c), append(g.caches, c)
			continue
		}
		c, err := device.AllocKVBy(alloc, s.Type(kvType), n, s.Width, s.Group)
		if err != nil {
			return err
		}
		kept = append(kept, c)
		if windowed {
			g.windows = append(g.windows, c)
			continue
		}
		if s.Kind == model.Paged {
			g.caches = append(g.caches, c)
			continue
		}
		g.states = append(g.states, state{State: s, running: c})
		last := &g.states[len(g.states)-1]
		if last.snapshots, err = device.AllocKV(g.dev, s.Type(kvType), g.lim.Snapshots*s.Rows, s.Width, s.Group); err != nil {
			return err
		}
	}
	g.kept = append(g.kept, kept)
	return nil
}

// borrow has the next layer use what layer from keeps.
func (g *Group) borrow(from int, before []*Group) error {
	for _, x := range append(before, g) {
		if at := from - x.First; at >= 0 && at < len(x.kept) {
			g.kept = append(g.kept, x.kept[at])
			return nil
		}
	}
	return fmt.Errorf("it uses that of layer %d, which is not on this device", from)
}

func (s *state) free() {
	s.running.Free()
	if !s.snapshots.Zero() {
		s.snapshots.Free()
	}
}

// copy appends copies of all rows of one sequence or snapshot to another.
func (s *state) copy(p *device.List, to *device.KV, i int, from *device.KV, j int) {
	p.CopyRows(to.RowRange(i*s.Rows, (i+1)*s.Rows), from.RowRange(j*s.Rows, (j+1)*s.Rows))
	if !to.Scales.Zero() {
		p.CopyRows(to.Scales.RowRange(i*s.Rows, (i+1)*s.Rows), from.Scales.RowRange(j*s.Rows, (j+1)*s.Rows))
	}
}

// moveStates copies the states of sequences as a batch's moves say, and makes those of sequences
// that begin in it zeros.
func (g *Group) moveStates(s device.Stream, st *stages.State) {
	for i := range g.states {
		x := &g.states[i]
		for _, m := range st.Moves {
			switch m.Kind {
			case stages.SaveState:
				x.copy(&g.program, &x.snapshots, int(m.To), &x.running, int(m.From))
			case stages.LoadState:
				x.copy(&g.program, &x.running, int(m.To), &x.snapshots, int(m.From))
			}
		}
		for j := range st.Spans {
			if sp := &st.Spans[j]; sp.Pos == 0 && x.Kind == model.Recurrent {
				x.copy(&g.program, &x.running, sp.Slot, &x.running, g.lim.Seqs)
			}
		}
	}
	g.send(s)
}

// send enqueues the copies that were appended.
func (g *Group) send(s device.Stream) {
	if len(g.program.Ops) > 0 {
		g.dev.Run(s, g.program)
		g.program.Reset()
	}
}
