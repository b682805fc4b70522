package term

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Progress tracks long work phase by phase. It shows a bar in the last line of a terminal, or
// reports its state at intervals; State returns the state at any time. The work calls Set after
// every piece, and End at the end. Progress is safe for concurrent use. A Set that shows nothing
// takes well under a microsecond.
type Progress struct {
	mu     sync.Mutex
	state  State
	began  time.Time // start of the phase
	marks  [2]mark   // points from which the recent rate is computed, the older one first
	set    mark      // the last Set
	shown  time.Time // time of the last drawing or report
	told   bool      // the phase has been reported
	width  int       // columns of the bar on the terminal
	w      io.Writer // the terminal; nil: none
	tell   func(State)
	every  time.Duration // between two drawings or reports
	now    func() time.Time
	closed bool
}

// mark is an amount at a time.
type mark struct {
	at   time.Time
	done int64
}

const (
	redraw  = 100 * time.Millisecond
	rateFor = 10 * time.Second // the recent rate covers this time, or up to twice as much
)

// BarAfter is how long a phase lasts before its bar is drawn, so that short phases do not flicker.
// It is a variable for tests.
var BarAfter = 200 * time.Millisecond

// NewProgress shows a bar if w is a terminal. Otherwise it calls tell, which may be nil, for each
// phase that lasts longer than every: at that interval and at the end.
func NewProgress(w io.Writer, every time.Duration, tell func(State)) *Progress {
	p := &Progress{tell: tell, every: every, now: time.Now}
	if Is(w) {
		p.w, p.tell, p.every = w, nil, redraw
	}
	return p
}

// Bar reports whether there is a terminal for a bar.
func (p *Progress) Bar() bool { return p.w != nil }

// Set reports that done of all of a phase is done. A new name begins a new phase. all is 0 if
// unknown. After Close it does nothing.
func (p *Progress) Set(phase string, unit Unit, done, all int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	now := p.now()
	if phase != p.state.Phase {
		p.finish()
		first := mark{now, done}
		p.state, p.began, p.shown, p.told, p.marks = State{Phase: phase}, now, now, false, [2]mark{first, first}
		if p.w != nil {
			p.shown = now.Add(BarAfter - p.every) // the bar appears BarAfter from now
		}
	}
	p.set = mark{now, done}
	if now.Sub(p.marks[1].at) >= rateFor {
		p.marks = [2]mark{p.marks[1], p.set}
	}
	p.state.Unit, p.state.Done, p.state.All = unit, done, all
	if spent := now.Sub(p.marks[0].at).Seconds(); spent > 0 && done > p.marks[0].done {
		p.state.PerSecond = float64(done-p.marks[0].done) / spent
	}
	if all > 0 && now.Sub(p.shown) >= p.every {
		p.show(now)
	}
}

// End ends the work: the bar disappears and the state is empty.
func (p *Progress) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finish()
	p.state, p.told = State{}, false
}

// Close ends it for good: work that still runs shows nothing more.
func (p *Progress) Close() {
	p.End()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

// State returns the current state.
func (p *Progress) State() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// finish removes the bar, or reports the end of a phase that was reported before.
func (p *Progress) finish() {
	p.clear()
	if p.tell != nil && p.told && p.state.Done >= p.state.All {
		s := p.state
		// At the end the rate covers the whole phase.
		if spent := p.set.at.Sub(p.began).Seconds(); spent > 0 {
			s.PerSecond = float64(s.Done) / spent
		}
		p.tell(s)
	}
}

// show draws the bar, or reports the state.
func (p *Progress) show(now time.Time) {
	p.shown = now
	if p.w != nil {
		line := p.state.Line(Width(p.w) - 1)
		n := len([]rune(line))
		fmt.Fprintf(p.w, "\r%s%s", line, strings.Repeat(" ", max(0, p.width-n)))
		p.width = n
		return
	}
	if p.tell != nil && p.state.Done < p.state.All {
		p.told = true
		p.tell(p.state)
	}
}

// clear removes the bar; the next Set draws it again.
func (p *Progress) clear() {
	if p.width > 0 {
		fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.width))
		p.width, p.shown = 0, time.Time{}
	}
}

// Beside returns w for lines that share the terminal with the bar, which is removed before they are
// written.
func (p *Progress) Beside(w io.Writer) io.Writer {
	if p.w == nil || !Is(w) {
		return w
	}
	return beside{p, w}
}

type beside struct {
	p *Progress
	w io.Writer
}

// Write implements io.Writer.
func (b beside) Write(data []byte) (int, error) {
	b.p.mu.Lock()
	defer b.p.mu.Unlock()
	b.p.clear()
	return b.w.Write(data)
}

// Line returns the state with a bar, in at most width columns: phase, bar, share, amounts, rate,
// time left.
func (s State) Line(width int) string {
	end := fmt.Sprintf(" %3.0f %%", 100*s.Share())
	left, known := s.Left()
	rest := "  " + s.Amounts()
	if rate := s.Rate(); rate != "" {
		rest += "  " + rate
	}
	if known && s.Done < s.All {
		rest += "  " + Duration(left) + " left"
	}
	const least = 10 // smallest useful bar
	phase := s.Phase
	if spare := width - len([]rune(phase+end+rest)) - 3 - least; spare < 0 && known { // narrow screen
		rest = "  " + Duration(left) + " left"
	}
	room := width - len([]rune(phase+end+rest)) - 3
	if room < 4 {
		return clip(phase+end+rest, width)
	}
	full := int(s.Share() * float64(room))
	return fmt.Sprintf("%s [%s%s]%s", phase, strings.Repeat("#", full), strings.Repeat(".", room-full), end+rest)
}

// clip cuts s to width columns.
func clip(s string, width int) string {
	if r := []rune(s); len(r) > width {
		return string(r[:max(0, width)])
	}
	return s
}
