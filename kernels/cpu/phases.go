package cpu

import (
	"sync/atomic"
	"time"

	"krater/kernels/device"
)

var _ device.PhaseTimer = (*Stream)(nil)

// phasesMost bounds the number of recorded phases; later ones prolong the last two.
const phasesMost = 64

// phases are the times of the experts that a stream computes: two looks at the clock for each group
// of rows, and one for each expert of a group whose halves have no barrier between them.
type phases struct {
	on   bool
	list []device.Phase
	from time.Time
	up   atomic.Int64 // when the newest middle rows of the group were there, ns from from
}

// TimePhases implements device.PhaseTimer.
func (s *Stream) TimePhases(on bool) { s.phases.on, s.phases.list = on, s.phases.list[:0] }

// Phases implements device.PhaseTimer.
func (s *Stream) Phases() []device.Phase { return s.phases.list }

// begin begins a group.
func (p *phases) begin() {
	if p.on {
		p.from = time.Now()
		p.up.Store(0)
	}
}

// middle notes that middle rows are computed; the last ones end the first half. It is safe for
// concurrent use.
func (p *phases) middle() {
	if !p.on {
		return
	}
	at := int64(time.Since(p.from))
	for old := p.up.Load(); old < at && !p.up.CompareAndSwap(old, at); old = p.up.Load() {
	}
}

// end ends a group.
func (p *phases) end() {
	if !p.on {
		return
	}
	up, now := p.from.Add(time.Duration(p.up.Load())), time.Now()
	if n := len(p.list); n >= phasesMost {
		p.list[n-2].To, p.list[n-1] = up, device.Phase{Down: true, From: up, To: now}
		return
	}
	p.list = append(p.list, device.Phase{From: p.from, To: up}, device.Phase{Down: true, From: up, To: now})
}
