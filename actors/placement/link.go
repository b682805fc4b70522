package placement

import (
	"slices"
	"time"

	"krater/kernels/device"
	"krater/scheduler/dispatch"
	"krater/stages/offload"
)

// link is the second way of a missing expert: it is copied to a spare slot while the host computes others. Spare slots are
// slots of the pool that hold no expert to stay. An expert that was copied stays until its slot is needed again,
// and if the learner wants it, its slot becomes one of those that stay.
type link struct {
	on    *offload.Link // of an accelerator, which copies for itself; nil: it cannot, or the device is none
	share share
	part  int     // of a layer's missing experts, in 1/dispatch.ShareUnit
	spare []int32 // slots
	most  int     // spare slots there can be
	sent  bool    // what the accelerator knows of it is right

	picked, missed, rows []int32 // reused
}

// At most 1/linkPart of the slots are spare, and at most linkMost.
const (
	linkPart = 8
	linkMost = 64
)

// newLink makes the link of a pool.
func (p *Placement) newLink(q *pool) (err error) {
	l := &q.link
	l.most, l.sent = min(linkMost, int(q.last-q.first)/linkPart), true
	if !p.accel || p.callRows == 0 {
		return nil
	}
	l.on, err = p.NewLink(p.views[dispatch.Decode], l.most)
	return err
}

// Links reports whether the device itself copies experts in the middle of a step with the given number of rows.
func (p *Placement) Links(rows int, watched bool) bool {
	if p.pool == nil || p.pool.link.on == nil || p.Phase(rows) != dispatch.Decode || !p.Asks(rows, watched) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pool.link.part > 0 && len(p.pool.link.spare) > 0
}

// divide sets what part of the missing experts is copied in the next step, and makes slots spare for that. last is
// the time of the step before, 0 if it is not known.
func (p *Placement) divide(rows int, last time.Duration) {
	q := p.pool
	l := &q.link
	if l.most == 0 || p.accel && l.on == nil {
		return
	}
	level, most := l.share.next(rows, last)
	part := level * dispatch.ShareUnit / shareLevels
	missing := min(rows*p.topK, p.setup.Experts)
	need := min(l.most, missing*most/shareLevels)
	if need != len(l.spare) || part != l.part {
		l.part, l.sent = part, false
	}
	if more := need - len(l.spare); more > 0 {
		p.spareSlots(more)
	} else {
		for _, slot := range l.spare[need:] {
			p.vacateSlot(slot) // moves fill it
		}
		l.spare = l.spare[:need]
	}
}

// spareSlots makes n more slots spare: free ones, and then those of the experts chosen least.
func (p *Placement) spareSlots(n int) {
	q := p.pool
	free := p.vacant()
	free = free[:min(n, len(free))]
	q.link.spare = append(q.link.spare, free...)
	for _, e := range q.learner.Least(n-len(free), p.movable) {
		i, k := p.expert(e)
		slot := q.there[i][k.Expert]
		q.there[i][k.Expert] = -1
		q.changed[i] = true
		p.vacateSlot(slot)
		q.link.spare = append(q.link.spare, slot)
	}
}

// adopt makes an expert that was copied to a spare slot one of those that stay, and slot spare instead. It reports false
// if the expert is in none.
func (p *Placement) adopt(k dispatch.Key, slot int32) bool {
	at, ok := p.residency.Slot(k)
	i := slices.Index(p.pool.link.spare, at)
	if !ok || i < 0 {
		return false
	}
	p.vacateSlot(slot)
	p.pool.link.spare[i], p.pool.link.sent = slot, false
	layer := p.index[int(k.Layer)]
	p.pool.there[layer][k.Expert], p.pool.changed[layer] = at, true
	return true
}

// overLink gives some of the host's work of a layer to the device, enqueues the copies, and counts what was decided. What the
// device refuses to copy the host computes. Accelerators choose by themselves.
func (p *Placement) overLink(phase dispatch.Phase, timing *device.Timing) {
	d, stats := &p.decision, &p.stats[phase]
	if p.pool == nil || p.accel || phase != dispatch.Decode || p.pool.link.part == 0 {
		stats.count(&p.step, d)
		return
	}
	l := &p.pool.link
	l.picked, d.Host = dispatch.Brought(l.picked[:0], d.Host, p.step.Work, l.part, len(l.spare))
	if len(l.picked) == 0 {
		stats.count(&p.step, d)
		return
	}
	d.Waves = append(d.Waves, dispatch.Wave{Work: l.picked})
	stats.count(&p.step, d)
	loads := p.toSpare(l)
	done := 0
	if len(loads) > 0 {
		done, _ = p.bring(loads, timing)
	}
	stats.Copies += int64(done)
	stats.CopiedBytes += int64(done) * p.setup.Bytes
	if done < len(loads) {
		w := &d.Waves[len(d.Waves)-1]
		w.Work = slices.DeleteFunc(w.Work, func(i int32) bool {
			_, ok := p.residency.Slot(dispatch.Key{Layer: p.step.Layer(), Expert: p.step.Work[i].Expert})
			if !ok {
				d.Host = append(d.Host, i)
				stats.Misses, stats.Host = stats.Misses-1, stats.Host+1
			}
			return !ok
		})
		slices.Sort(d.Host)
	}
}

// toSpare lists the copies of the picked experts to spare slots. Some may still be there.
func (p *Placement) toSpare(l *link) (loads []dispatch.Load) {
	free := slices.Clone(l.spare)
	key := func(i int32) dispatch.Key {
		return dispatch.Key{Layer: p.step.Layer(), Expert: p.step.Work[i].Expert}
	}
	for _, i := range l.picked {
		if slot, ok := p.residency.Slot(key(i)); ok {
			free = slices.DeleteFunc(free, func(s int32) bool { return s == slot })
		}
	}
	for _, i := range l.picked {
		if _, ok := p.residency.Slot(key(i)); !ok {
			loads = append(loads, dispatch.Load{Slot: free[len(loads)], Key: key(i)})
		}
	}
	// What is overwritten now is overwritten last the next time.
	now := free[:len(loads)]
	l.spare = append(slices.DeleteFunc(l.spare, func(s int32) bool { return slices.Contains(now, s) }), now...)
	return loads
}

// sendLink gives an accelerator the part and the slots.
func (p *Placement) sendLink(s device.Stream) {
	if l := &p.pool.link; l.on != nil && !l.sent {
		l.on.Set(s, l.part, l.spare)
		l.sent = true
	}
}

// noteLink counts what an accelerator has copied for the choices of a layer. It takes the part and the slots of now for those
// of the step.
func (p *Placement) noteLink(index int, chosen []int32) {
	l, in := &p.pool.link, &p.step
	if l.on == nil || l.part == 0 || len(l.spare) == 0 {
		return
	}
	l.rows = append(l.rows[:0], make([]int32, p.setup.Experts)...)
	for _, e := range chosen {
		if p.pool.there[index][e] < 0 {
			l.rows[e]++
		}
	}
	in.Work, l.missed = in.Work[:0], l.missed[:0]
	for e, n := range l.rows {
		if n > 0 {
			l.missed = append(l.missed, int32(len(in.Work)))
			in.Work = append(in.Work, dispatch.Rows{Expert: int32(e), Rows: n})
		}
	}
	l.picked, _ = dispatch.Brought(l.picked[:0], l.missed, in.Work, l.part, len(l.spare))
	stats := &p.stats[dispatch.Decode]
	for _, i := range l.picked {
		stats.Hits -= int64(in.Work[i].Rows) // which Asked counts
		stats.Misses += int64(in.Work[i].Rows)
	}
	stats.Copies += int64(len(l.picked))
	stats.CopiedBytes += int64(len(l.picked)) * p.setup.Bytes
}
