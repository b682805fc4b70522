package term

import (
	"fmt"
	"time"
)

// Unit is the unit of an amount of work.
type Unit uint8

// The units.
const (
	Bytes Unit = iota
	Tokens
	Seconds // for work whose duration is known
	Steps
)

// State is the progress of a phase of long work.
type State struct {
	Phase     string // what is being done, such as "load weights"; "": nothing
	Unit      Unit
	Done, All int64   // All is 0 if unknown
	PerSecond float64 // recent rate in units per second; 0: unknown
}

// Share returns the part that is done, 0 to 1.
func (s State) Share() float64 {
	if s.All <= 0 {
		return 0
	}
	return min(1, max(0, float64(s.Done)/float64(s.All)))
}

// Left returns the time that the rest takes at the recent rate; ok is false if unknown.
func (s State) Left() (left time.Duration, ok bool) {
	if s.All <= 0 || s.Done < s.All && s.PerSecond <= 0 {
		return 0, false
	}
	const most = 1000 * time.Hour
	rest := float64(max(0, s.All-s.Done))
	return min(most, time.Duration(rest/max(1e-9, s.PerSecond)*float64(time.Second))), true
}

// Rate returns the recent rate for people, such as "1.2 GB/s"; "" if unknown or meaningless.
func (s State) Rate() string {
	if s.PerSecond <= 0 || s.Unit == Seconds {
		return ""
	}
	return quantity(s.PerSecond, s.Unit) + "/s"
}

// Amounts returns the done part of the whole: "1.2 GB of 9.5 GB".
func (s State) Amounts() string {
	if s.Unit == Steps {
		return fmt.Sprintf("%d of %d", s.Done, s.All)
	}
	return quantity(float64(s.Done), s.Unit) + " of " + quantity(float64(s.All), s.Unit)
}

// quantity formats n units. Bytes are decimal, as is usual for rates of memory and disks.
func quantity(n float64, u Unit) string {
	switch u {
	case Tokens:
		return fmt.Sprintf("%.0f tokens", n)
	case Seconds:
		return fmt.Sprintf("%.0f s", n)
	case Steps:
		return fmt.Sprintf("%.2g", n)
	}
	for _, b := range []struct {
		bytes float64
		name  string
	}{{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}} {
		if n >= b.bytes {
			return fmt.Sprintf("%.1f %s", n/b.bytes, b.name)
		}
	}
	return fmt.Sprintf("%.0f B", n)
}

// String returns the state in one line: "load weights: 43 %, 4.1 GB of 9.5 GB, 1.2 GB/s, 5s left".
func (s State) String() string {
	if s.All <= 0 {
		return s.Phase
	}
	text := fmt.Sprintf("%s: %.0f %%, %s", s.Phase, 100*s.Share(), s.Amounts())
	if rate := s.Rate(); rate != "" {
		text += ", " + rate
	}
	if left, ok := s.Left(); ok && s.Done < s.All {
		text += ", " + Duration(left) + " left"
	}
	return text
}

// Duration formats a remaining time in whole seconds, rounded up: "45s", "3m20s".
func Duration(d time.Duration) string {
	return (d + time.Second - 1).Truncate(time.Second).String()
}
