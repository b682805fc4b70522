package serve

import (
	"fmt"
	"strings"
	"time"
)

// Bounds are the limits of a request that counts for goodput; 0: no limit.
type Bounds struct {
	TTFT, TPOT, E2E time.Duration
}

// ParseBounds reads "ttft:500ms,tpot:50ms,e2el:10s", any of them.
func ParseBounds(text string) (Bounds, error) {
	var b Bounds
	if text == "" {
		return b, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(part, ":")
		field := map[string]*time.Duration{"ttft": &b.TTFT, "tpot": &b.TPOT, "e2el": &b.E2E}[name]
		d, err := time.ParseDuration(value)
		if field == nil || err != nil || d <= 0 || *field != 0 {
			return Bounds{}, fmt.Errorf("goodput %q: want ttft:TIME, tpot:TIME and e2el:TIME, each at most once, with commas between", text)
		}
		*field = d
	}
	return b, nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *Bounds) UnmarshalText(text []byte) (err error) {
	*b, err = ParseBounds(string(text))
	return err
}

// MarshalText implements encoding.TextMarshaler.
func (b Bounds) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// String returns the flag's value again.
func (b Bounds) String() string {
	var parts []string
	for _, x := range []struct {
		name string
		d    time.Duration
	}{{"ttft", b.TTFT}, {"tpot", b.TPOT}, {"e2el", b.E2E}} {
		if x.d > 0 {
			parts = append(parts, x.name+":"+x.d.String())
		}
	}
	return strings.Join(parts, ",")
}

// Any reports whether something is bounded.
func (b Bounds) Any() bool { return b != Bounds{} }

// Keeps reports whether a completed request kept all limits.
func (b Bounds) Keeps(r *Record) bool {
	within := func(seconds float64, d time.Duration) bool { return d == 0 || seconds <= d.Seconds() }
	return within(r.TTFT, b.TTFT) && within(r.TPOT, b.TPOT) && within(r.E2E, b.E2E)
}
