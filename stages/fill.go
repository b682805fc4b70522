package stages

import "krater/kernels/device"

// Fill copies the step b to st, if there is only one rank, and loads it. b is not kept; it may be
// st.Step. b.From must not be filled again before s has submitted the step. After an error (ErrBatch)
// st has no step, and nothing runs.
func (st *State) Fill(s device.Stream, b *Step) error {
	st.T = 0
	if err := st.Step.Fill(b); err != nil {
		return err
	}
	if err := st.checkChanges(); err != nil {
		return err
	}
	st.Load(s)
	st.Begin(s)
	return nil
}

// Load prepares the rank's rows for the step: it builds the inputs of the layers and copies them to the
// device on s. The caller calls it after Step.Fill, and then Begin.
func (st *State) Load(s device.Stream) {
	if err := st.checkChanges(); err != nil {
		panic(err)
	}
	st.T, st.first, st.repeated = len(st.Tokens), 0, false
	st.program.Reset() // there may be operators of a lost step
	st.cutSpans(0, st.T)
	st.inputs.begin(st.T, st.lim.columns())
	copy(st.inputs.tokens, st.Tokens)
	for _, id := range st.cfg.Placeholders {
		for i, token := range st.Tokens {
			if token == id {
				st.inputs.tokens[i] = max(0, st.cfg.Pad)
			}
		}
	}
	bt := int32(st.lim.BlockTokens)
	for i := range st.Spans {
		sp := &st.Spans[i]
		for j := range sp.Len {
			p := int32(sp.Pos + j)
			st.inputs.pos[sp.Row+j] = p
			st.inputs.slots[sp.Row+j] = sp.Blocks[p/bt]*bt + p%bt
			if sp.Windows != nil {
				st.inputs.windowSlots[sp.Row+j] = sp.Windows[p/bt]*bt + p%bt
			}
		}
	}
	st.view()
	st.sendInputs(s)
}

// Begin begins the work of a loaded step, after all copies of its rows to the device.
func (st *State) Begin(s device.Stream) {
	if st.repeated = s.Repeat(st.stepKey()); !st.repeated {
		st.takeTokens(s)
	}
}

// stepKey tells apart steps of different work. It is 0, so that nothing is repeated, for a step
// that has prompts, moves blocks, is watched by a probe, needs the host, begins a sequence
// (whose states are made zeros first), or is taken in pieces, whose tables of spans lie where the former ones end.
func (st *State) stepKey() uint64 {
	if st.Watched || st.UsesHost || len(st.Moves) > 0 || len(st.Prefill) > 0 || st.AllLogits || st.layout == nil || st.lim.Snapshots > 0 && st.begins() || st.Windows() > 1 {
		return 0
	}
	const prime = 0x100000001b3
	key, from, changed, links := uint64(14695981039346656037), uint64(0), uint64(0), uint64(0)
	if st.From != nil {
		from = st.From.id
	}
	if st.changed {
		changed = 1
	}
	if st.Links {
		links = 1
	}
	for _, v := range []uint64{uint64(st.T), uint64(len(st.Wanted)), uint64(len(st.Step.Draws)), changed, links, from, st.layout.StepKey(st.Decode)} {
		key = (key ^ v) * prime
	}
	return key | 1
}

// begins reports whether a sequence begins in the step.
func (st *State) begins() bool {
	for i := range st.Spans {
		if st.Spans[i].Pos == 0 {
			return true
		}
	}
	return false
}

// Repeated reports whether the stream given to Begin has replayed the whole step. Then embed and groups
// must not run, and head only fetches results.
func (r *Rows) Repeated() bool { return r.repeated }

// view cuts the matrices to the rows of the step.
func (st *State) view() {
	n, f := len(st.Wanted), &st.full
	st.viewRows(0, st.T)
	if !st.head {
		return
	}
	st.Final = f.final.RowRange(0, n)
	st.Picked = st.Final
	if !f.picked.Zero() {
		st.Picked = f.picked.RowRange(0, n)
	}
	st.Output = NewInput(st.Final, st.final)
	st.Logits = f.logits.RowRange(0, n)
}

// viewRows cuts the matrices that layers work on to rows [from, to) of the step.
func (r *Rows) viewRows(from, to int) {
	t, f := to-from, &r.full
	r.Hidden = f.hidden.RowRange(from, to)
	r.Normed = f.normed.RowRange(0, t)
	r.Delta = f.delta.RowRange(0, t)
	r.Mix = f.mix.Of(t)
	r.Input = NewInput(r.Normed, r.normed)
	if !f.perLayer.Zero() {
		r.PerLayer, r.Context, r.Gated = f.perLayer.RowRange(from, to), f.context.RowRange(from, to), f.gated.RowRange(0, t)
	}
	if !f.shared.Zero() {
		r.Shared = f.shared.RowRange(0, t)
	}
	if !f.selected.Zero() {
		first := from
		if f.selected.Rows < r.lim.Tokens { // that of a piece
			first = 0
		}
		r.Selected = f.selected.RowRange(first, first+t)
	}
	if !f.expertOut.Zero() {
		r.ExpertOut = f.expertOut.RowRange(0, t*f.routerIDs.Cols)
		r.RouterLogits = f.routerLogits.RowRange(0, t)
		r.RouterIDs = f.routerIDs.RowRange(0, t)
		r.RouterWeights = f.routerWeights.RowRange(0, t)
	}
}
