package term

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Bar shows how far long work is, in the last line of a terminal. Elsewhere it shows
// nothing. It may be used from several goroutines.
type Bar struct {
	mu    sync.Mutex
	w     io.Writer
	on    bool
	label string
	unit  func(int64) string
	start time.Time
	drawn time.Time
	width int // of what stands there
	now   func() time.Time
}

// redraw is the least time between two drawings.
const redraw = 100 * time.Millisecond

// NewBar makes a bar on w; unit writes amounts.
func NewBar(w io.Writer, label string, unit func(int64) string) *Bar {
	return &Bar{w: w, on: Is(w), label: label, unit: unit, start: time.Now(), now: time.Now}
}

// Shown reports whether anybody sees the bar.
func (b *Bar) Shown() bool { return b.on }

// Label changes what the work is called.
func (b *Bar) Label(label string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.label = label
}

// Set draws done of all, unless it has just been drawn.
func (b *Bar) Set(done, all int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if !b.on || done < all && now.Sub(b.drawn) < redraw {
		return
	}
	b.drawn = now
	line := b.line(done, all, Width(b.w)-1, now)
	n := len([]rune(line))
	fmt.Fprintf(b.w, "\r%s%s", line, strings.Repeat(" ", max(0, b.width-n)))
	b.width = n
}

// Clear takes the bar away; it comes back with the next Set.
func (b *Bar) Clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.on && b.width > 0 {
		fmt.Fprintf(b.w, "\r%s\r", strings.Repeat(" ", b.width))
		b.width, b.drawn = 0, time.Time{}
	}
}

// line is the bar in width columns: label, bar, share, amounts, time that is left.
func (b *Bar) line(done, all int64, width int, now time.Time) string {
	share := 0.0
	if all > 0 {
		share = min(1, float64(done)/float64(all))
	}
	end := fmt.Sprintf(" %3.0f %%  %s of %s", 100*share, b.unit(done), b.unit(all))
	if spent := now.Sub(b.start); share > 0.02 && share < 1 && spent > time.Second {
		left := time.Duration(float64(spent) * (1 - share) / share)
		end += "  " + left.Round(time.Second).String() + " left"
	}
	room := width - len([]rune(b.label)) - len([]rune(end)) - 3
	if room < 4 {
		return clip(b.label+end, width)
	}
	full := int(share * float64(room))
	return fmt.Sprintf("%s [%s%s]%s", b.label, strings.Repeat("#", full), strings.Repeat(".", room-full), end)
}

// clip is s in width columns at most.
func clip(s string, width int) string {
	if r := []rune(s); len(r) > width {
		return string(r[:max(0, width)])
	}
	return s
}
