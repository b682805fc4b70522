package helper

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"krater/kernels/device"
	"krater/stages"
	"krater/stages/expert"
	"krater/stages/load"
)

// Times are how long a layer's experts take for some rows.
type Times struct {
	Rows  int
	Alone time.Duration // all of them on the rank
	// Held is for those that the helper holds, with the ways there and back, and Carry for none of them.
	Held, Carry time.Duration
	Part        float64 // of the choices, those of experts that the helper holds
}

// measurements is how often each time is taken; the shortest counts.
const measurements = 3

// Measure takes times on both devices, for rows that choose all experts alike. here is where the rank finds all
// experts of a layer, if that is an accelerator; else they are in bank.
func (w *Worker) Measure(rank load.Rank, layer, rows int, bank *expert.Bank, here *device.Bank, now func() int64) (t Times, err error) {
	cfg := w.x.parts.Config
	group := 0
	if here == nil && len(bank.Integers) > 0 {
		group = bank.Integers[0].W13.Group
	}
	r, err := newRoom(rank.Device, cfg, rows, group)
	defer r.close()
	if err != nil {
		return t, fmt.Errorf("rows to measure experts with: %w", err)
	}
	r.enter(rows)
	s, err := rank.Device.NewStream()
	if err != nil {
		return t, err
	}
	defer s.Close()
	k, experts := cfg.MoE.Router.TopK, cfg.MoE.Experts
	ids, all := choices(rows, k, experts)
	var held []device.ExpertRows
	mine := 0
	for _, x := range all {
		if w.x.holds[layer][x.Expert] {
			held, mine = append(held, x), mine+len(x.Assign)
		}
	}
	t.Rows, t.Part = rows, float64(mine)/float64(rows*k)
	// took runs f until nothing of it is left.
	took := func(ids []int32, f func() error) (least time.Duration, err error) {
		s.CopyIn(r.st.RouterIDs, bytesOf(ids))
		if err := s.Synchronize(); err != nil {
			return 0, err
		}
		for i := range measurements + 1 { // the first one makes memory ready
			began := now()
			if err := f(); err != nil {
				return 0, err
			}
			if d := time.Duration(now() - began); i == 1 || i > 0 && d < least {
				least = d
			}
		}
		return least, nil
	}
	if t.Alone, err = took(ids, func() error {
		alone(s, rank.Device, &r.st, bank, here, all)
		return s.Synchronize()
	}); err != nil {
		return t, err
	}
	if t.Held, err = took(ids, func() error { return w.Compute(&r.st, layer, held) }); err != nil {
		return t, err
	}
	none := make([]int32, len(ids)) // an id below 0 is no choice
	for i := range none {
		none[i] = -1
	}
	t.Carry, err = took(none, func() error { return w.Compute(&r.st, layer, nil) })
	return t, errors.Join(err, s.Synchronize())
}

// alone enqueues all experts of a layer on the rank.
func alone(s device.Stream, dev device.Device, st *stages.State, bank *expert.Bank, here *device.Bank, work []device.ExpertRows) {
	p := st.On(dev, s, nil)
	if here != nil {
		p.ExpertsOn(st.ExpertOut, st.Normed, here, st.RouterIDs)
		p.Send()
		return
	}
	if len(bank.Integers) > 0 {
		p.QuantizeRows(st.Input.Q, st.Input.X)
		p.Send()
	}
	bank.Run(s, dev, st, work)
}

// choices are k different experts for each row, all experts alike, and the same by expert.
func choices(rows, k, experts int) (ids []int32, work []device.ExpertRows) {
	lists := make([][]int32, experts)
	for t := range rows {
		for i := range k {
			e := (t*k + i*max(1, experts/k) + t/experts) % experts
			for j := 0; j < i; j++ {
				if ids[t*k+j] == int32(e) {
					e, j = (e+1)%experts, -1
				}
			}
			ids = append(ids, int32(e))
			lists[e] = append(lists[e], int32(t*k+i))
		}
	}
	for e, list := range lists {
		if len(list) > 0 {
			work = append(work, device.ExpertRows{Expert: int32(e), Assign: list})
		}
	}
	return ids, work
}

func bytesOf(v []int32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}
