//go:build cuda

package rt

import (
	"fmt"
	"time"

	"gorgonia.org/cu"
)

// timing is the state of a step that the GPU times.
type timing struct {
	begins bool       // the step has begun, and none of it has been sent
	marks  []cu.Event // its beginning, and the ends of its parts
	spare  []cu.Event
	took   []time.Duration
}

// Time sets whether the GPU times the step that begins.
func (s *Stream) Time(on bool) {
	t := &s.timing
	t.spare = append(t.spare, t.marks...)
	t.marks, t.took, t.begins = t.marks[:0], nil, on
}

// Mark ends a part of a step that is timed. It does not cut a list that may become a graph.
func (s *Stream) Mark() bool {
	t := &s.timing
	if s.err != nil || s.keep || s.step.replay != nil || !t.begins && len(t.marks) == 0 {
		return false
	}
	s.Flush()
	s.Fail(s.gpu.do(func() error {
		if err := s.begins(); err != nil {
			return err
		}
		return s.mark()
	}))
	return s.err == nil
}

// begins marks the beginning of a timed step, before the first of its work. Like mark it runs on
// the owner's thread.
func (s *Stream) begins() error {
	if !s.timing.begins {
		return nil
	}
	s.timing.begins = false
	return s.mark()
}

// mark adds an event that has a time.
func (s *Stream) mark() error {
	t := &s.timing
	var e cu.Event
	if n := len(t.spare); n > 0 {
		e, t.spare = t.spare[n-1], t.spare[:n-1]
	} else {
		var err error
		if e, err = cu.MakeEvent(cu.DefaultEvent); err != nil {
			return fmt.Errorf("event: %w", err)
		}
	}
	t.marks = append(t.marks, e)
	if err := e.Record(s.s); err != nil {
		return fmt.Errorf("event: %w", err)
	}
	return nil
}

// Took returns the GPU's times for the parts of the step that was waited for last.
func (s *Stream) Took() []time.Duration {
	t := &s.timing
	if s.err != nil || len(t.marks) < 2 || len(t.took) > 0 {
		return t.took
	}
	s.Fail(s.gpu.do(func() error {
		for i := 1; i < len(t.marks); i++ {
			ms, err := t.marks[i-1].Elapsed(t.marks[i])
			if err != nil {
				return fmt.Errorf("time between events: %w", err)
			}
			t.took = append(t.took, time.Duration(ms*float64(time.Millisecond)))
		}
		return nil
	}))
	return t.took
}

// close frees the events. It runs on the owner's thread.
func (t *timing) close() {
	for _, list := range [][]cu.Event{t.marks, t.spare} {
		for i := range list {
			_ = cu.DestroyEvent(&list[i]) // there is no caller to report it to
		}
	}
	t.marks, t.spare = nil, nil
}
