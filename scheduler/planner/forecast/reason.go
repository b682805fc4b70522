package forecast

import (
	"fmt"

	"krater/scheduler/planner"
)

// explain says of a side that fits why it lost, or of the chosen one what bounds it.
func (x *chooser) explain(s *Side, chosen *Candidate, decode bool) {
	if !s.Fits {
		return
	}
	if chosen == nil {
		s.Reason = "no prefill fits"
		return
	}
	at := bound(&s.Decides)
	if !decode && len(x.w.Lengths) > 1 {
		at = fmt.Sprintf("at %d %s", s.Decides.N, at)
	}
	if s.Chosen {
		s.Reason = at
		return
	}
	best := &chosen.Prefill
	if decode {
		best = &chosen.Decode
	}
	share := s.Score / best.Score
	switch {
	case share > 2-asFast && !decode && x.divided:
		s.Reason = fmt.Sprintf("%.3g times %s, but leaves less to decode with: %s", share, chosen.Name(), at)
	case share > 2-asFast:
		s.Reason = fmt.Sprintf("%.3g times %s, which is wanted: %s", share, chosen.Name(), at)
	case share < asFast:
		s.Reason = fmt.Sprintf("%.2g of %s: %s", share, chosen.Name(), at)
	case s.VRAM == best.VRAM:
		s.Reason = fmt.Sprintf("the same as %s here", chosen.Name())
	default: // it would leave less to decode with, or takes more memory
		s.Reason = "as fast as " + chosen.Name()
		if a, b := planner.Size(s.VRAM), planner.Size(best.VRAM); a != b {
			s.Reason += fmt.Sprintf(", in %s of the GPU instead of %s", a, b)
		}
	}
}

// bound says what takes most of the time.
func bound(p *Point) string {
	t := &p.Time
	parts := []struct {
		seconds float64
		what    string
	}{
		{t.Card, "the GPU's own work takes %s of %s"},
		{t.Copies, "copying " + planner.Size(int64(t.Copied)) + " takes %s of %s"},
		{t.Host, "experts on the processors take %s of %s"},
		{t.HandOver, "handing over takes %s of %s"},
		{t.Launches, "launches take %s of %s"},
	}
	most := parts[0]
	for _, part := range parts[1:] {
		if part.seconds > most.seconds {
			most = part
		}
	}
	return fmt.Sprintf(most.what, Duration(most.seconds), Duration(t.Total))
}

// Number formats a rate with three digits, such as 12.3K.
func Number(v float64) string {
	switch {
	case v >= 999_500:
		return fmt.Sprintf("%.3gM", v/1e6)
	case v >= 9_995:
		return fmt.Sprintf("%.3gK", v/1e3)
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// Duration formats a number of seconds with three digits and a unit.
func Duration(s float64) string {
	switch {
	case s >= 999.5:
		return fmt.Sprintf("%.0f s", s)
	case s >= 0.9995:
		return fmt.Sprintf("%.3g s", s)
	case s >= 0.9995e-3:
		return fmt.Sprintf("%.3g ms", 1e3*s)
	}
	return fmt.Sprintf("%.3g us", 1e6*s)
}
