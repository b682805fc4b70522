package placement

import "krater/scheduler/dispatch"

// Stats counts experts, once per layer and step. If a GPU uses host calls, it counts choices of experts
// instead.
type Stats struct {
	Hits   int64 `json:"hits"`   // on the device when their layer began
	Misses int64 `json:"misses"` // copied for their layer
	Host   int64 `json:"host"`   // computed by the host
	Copies int64 `json:"copies"` // experts copied, needed or not, without those at the start
	// CopiedBytes is the number of bytes of Copies, a slot of the device each.
	CopiedBytes int64 `json:"copied_bytes"`
}

// count adds what a decision means before it is carried out.
func (s *Stats) count(in *dispatch.Step, out *dispatch.Decision) {
	s.Host += int64(len(out.Host))
	for _, w := range out.Waves {
		for _, i := range w.Work {
			if _, ok := in.Residency.Slot(dispatch.Key{Layer: in.Layer(), Expert: in.Work[i].Expert}); ok {
				s.Hits++
			} else {
				s.Misses++
			}
		}
	}
}

// HitRate returns the share (0 to 1) of the experts used that were on the device when their layer
// began. It returns 0 if no expert was used.
func (s Stats) HitRate() float64 {
	if n := s.Hits + s.Misses + s.Host; n > 0 {
		return float64(s.Hits) / float64(n)
	}
	return 0
}

// Since returns s less an earlier copy: the counts since then.
func (s Stats) Since(before Stats) Stats {
	return Stats{s.Hits - before.Hits, s.Misses - before.Misses, s.Host - before.Host, s.Copies - before.Copies, s.CopiedBytes - before.CopiedBytes}
}

// Stats returns the counts of a phase since the start.
func (p *Placement) Stats(phase dispatch.Phase) Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	if phase == dispatch.Decode {
		return p.decodeStats()
	}
	return p.stats[phase]
}

// decodeStats is Stats of generated rows, for which alone a GPU asks the host. p.mu is held.
func (p *Placement) decodeStats() Stats {
	s := p.stats[dispatch.Decode]
	asked, there := p.Asked()
	s.Host, s.Hits = s.Host+asked, s.Hits+there
	return s
}

// Resident appends to list, for every expert of a layer of the model, whether it is on the device.
func (p *Placement) Resident(list []bool, layer int) []bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for e := range p.setup.Experts {
		_, ok := p.residency.Slot(dispatch.Key{Layer: int32(layer), Expert: int32(e)})
		list = append(list, ok)
	}
	return list
}

// Slots returns the number of slots on the device and the size of a slot in bytes.
func (p *Placement) Slots() (n int, bytes int64) {
	return p.residency.Slots(), int64(p.residency.Slots()) * p.setup.Bytes
}
