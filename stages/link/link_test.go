package link

import (
	"errors"
	"strings"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/hostsim"
	"krater/kernels/tensor"
)

// pair is two devices with a matrix each.
type pair struct {
	from, to device.Stream
	src, dst device.Mat
}

func newPair(t *testing.T, from, to device.Device) pair {
	t.Helper()
	var p pair
	for _, x := range []struct {
		dev device.Device
		s   *device.Stream
		m   *device.Mat
	}{{from, &p.from, &p.src}, {to, &p.to, &p.dst}} {
		var err error
		if *x.s, err = x.dev.NewStream(); err != nil {
			t.Fatal(err)
		}
		if *x.m, err = device.AllocMat(x.dev, tensor.F32, 9, 20); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(x.m.Buf.Free)
	}
	return p
}

func devices(t *testing.T) (processors [2]device.Device, sims [2]device.Device) {
	t.Helper()
	for i := range processors {
		c, err := cpu.New(cpu.Options{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		s, err := hostsim.New(hostsim.Options{CPU: c})
		if err != nil {
			t.Fatal(err)
		}
		processors[i], sims[i] = c, s
	}
	return processors, sims
}

// open makes a hop between the matrices.
func (p pair) open(t *testing.T, kinds ...Kind) (*Hop, []error, error) {
	h, fallen, err := Open(new(Pair), kinds, p.from, p.to, p.src, p.dst, 0)
	if h != nil {
		t.Cleanup(h.Close)
	}
	return h, fallen, err
}

// TestChosen: memory that the host addresses is linked directly, any other through the host.
func TestChosen(t *testing.T) {
	c, s := devices(t)
	for _, x := range []struct {
		from, to device.Device
		want     string
	}{{c[0], c[0], "direct"}, {c[0], c[1], "direct"}, {c[0], s[0], "bounce"}, {s[0], c[1], "bounce"}, {s[0], s[1], "bounce"}, {s[0], s[0], "bounce"}} {
		p := newPair(t, x.from, x.to)
		h, fallen, err := p.open(t, Kinds()...)
		if err != nil || len(fallen) > 0 || h.Name() != x.want {
			t.Errorf("%s to %s: %v, %v, %v, want %s", x.from.Name(), x.to.Name(), h, fallen, err, x.want)
		}
	}
}

// broken is a link with a fault.
type broken struct {
	Link
	carry func(l Link, from, to device.Stream, src, dst []device.Mat) error
}

func (broken) Name() string { return "broken" }

func (b broken) Carry(from, to device.Stream, src, dst []device.Mat) error {
	return b.carry(b.Link, from, to, src, dst)
}

var errDown = errors.New("the cable is out")

// faults returns faulty links by the error that the test expects. Such faults have been seen on real links.
func faults() map[string]func(l Link, from, to device.Stream, src, dst []device.Mat) error {
	var stale []byte
	carried := 0
	return map[string]func(l Link, from, to device.Stream, src, dst []device.Mat) error{
		"zeros": func(_ Link, _, to device.Stream, _, dst []device.Mat) error {
			to.CopyIn(dst[0], make([]byte, dst[0].Bytes()))
			return nil
		},
		"what was carried before": func(_ Link, from, to device.Stream, src, dst []device.Mat) error {
			old := stale
			stale = make([]byte, src[0].Bytes())
			from.CopyOut(stale, src[0])
			if err := from.Synchronize(); err != nil {
				return err
			}
			if len(old) != len(stale) {
				old = stale
			}
			to.CopyIn(dst[0], old)
			return to.Synchronize()
		},
		"nothing": func(l Link, from, to device.Stream, src, dst []device.Mat) error {
			n := max(1, src[0].Rows-1) // the last row is left out
			return l.Carry(from, to, []device.Mat{src[0].RowRange(0, n)}, []device.Mat{dst[0].RowRange(0, n)})
		},
		"instead of": func(l Link, from, to device.Stream, src, dst []device.Mat) error {
			n := src[0].Rows
			if n == 1 {
				return l.Carry(from, to, src, dst)
			}
			a, b := src[0].RowRange(0, 1), src[0].RowRange(1, 2) // two rows change places
			return errors.Join(l.Carry(from, to, src, dst), to.Synchronize(),
				l.Carry(from, to, []device.Mat{a, b}, []device.Mat{dst[0].RowRange(1, 2), dst[0].RowRange(0, 1)}))
		},
		"the cable is out": func(l Link, from, to device.Stream, src, dst []device.Mat) error {
			if carried++; carried == 3 {
				return errDown
			}
			return l.Carry(from, to, src, dst)
		},
	}
}

// bad makes links with a fault.
func bad(carry func(l Link, from, to device.Stream, src, dst []device.Mat) error) Kind {
	return func(w Way) (Link, bool) {
		l, ok := Bounce(w)
		return broken{l, carry}, ok
	}
}

// TestFaultsInService: rows that change on the way after the start are noticed, whatever happens to
// them. Then the next kind of link is used, by every hop of the pair.
func TestFaultsInService(t *testing.T) {
	for want, carry := range faults() {
		if want == "the cable is out" {
			continue // Carry says so itself
		}
		c, s := devices(t)
		for _, x := range [][2]device.Device{{c[0], c[1]}, {s[0], s[1]}, {c[0], s[1]}, {s[0], c[1]}} {
			p, faulty := newPair(t, x[0], x[1]), false
			kind := bad(func(l Link, from, to device.Stream, src, dst []device.Mat) error {
				if !faulty {
					return l.Carry(from, to, src, dst)
				}
				return carry(l, from, to, src, dst)
			})
			var shared Pair
			var hops [2]*Hop
			for i := range hops {
				var err error
				if hops[i], _, err = Open(&shared, []Kind{kind, Bounce}, p.from, p.to, p.src, p.dst, 0); err != nil {
					t.Fatal(err)
				}
				defer hops[i].Close()
			}
			send := func(h *Hop, seed byte) error {
				p.from.CopyIn(p.src, pattern(p.src.Bytes(), seed))
				err := h.Carry(p.from, p.to, []device.Mat{p.src}, []device.Mat{p.dst})
				return errors.Join(err, p.from.Synchronize(), p.to.Synchronize(), h.Arrived())
			}
			if err := send(hops[0], 1); err != nil || hops[0].Name() != "broken" {
				t.Fatalf("%s: before: %s, %v", want, hops[0].Name(), err)
			}
			faulty = true
			var err error
			for seed := byte(2); seed < 5 && err == nil; seed++ { // what was carried before may be the same once
				err = send(hops[0], seed)
			}
			if !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), x[0].Name()+" to "+x[1].Name()+" (broken)") {
				t.Errorf("%s: %v", want, err)
			}
			for _, h := range hops {
				if err := send(h, 5); err != nil || h.Name() != "bounce" {
					t.Errorf("%s: after: %s, %v", want, h.Name(), err)
				}
			}
			if got := shared.Costs(); len(got) != 2 || got[0].Faults != 1 || got[1].Faults != 0 || got[1].Hops != 2 {
				t.Errorf("%s: %+v", want, got)
			}
		}
	}
}

// TestBrokenLinks: a kind of link that does not carry what it is given is not used. The next
// one is, and with none left the fault is an error.
func TestBrokenLinks(t *testing.T) {
	for want, carry := range faults() {
		_, s := devices(t)
		p := newPair(t, s[0], s[1])
		_, _, err := p.open(t, bad(carry))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "broken") {
			t.Errorf("%s: %v", want, err)
		}
	}
	for want, carry := range faults() {
		_, s := devices(t)
		p := newPair(t, s[0], s[1])
		h, fallen, err := p.open(t, bad(carry), Bounce)
		if err != nil || h.Name() != "bounce" || len(fallen) != 1 || !strings.Contains(fallen[0].Error(), want) {
			t.Errorf("%s, and another kind: %v, %v, %v", want, h, fallen, err)
		}
	}
}

// TestCarryOnlyReads: rows that are sent stay, and rows beside those that arrive.
func TestCarryOnlyReads(t *testing.T) {
	c, s := devices(t)
	for _, x := range [][2]device.Device{{c[0], c[1]}, {s[0], s[1]}} {
		p := newPair(t, x[0], x[1])
		l, _, err := p.open(t, Kinds()...)
		if err != nil {
			t.Fatal(err)
		}
		sent, beside := pattern(p.src.Bytes(), 1), pattern(p.dst.Bytes(), 2)
		p.from.CopyIn(p.src, sent)
		p.to.CopyIn(p.dst, beside)
		// Two matrices at once: rows 0 to 2 to rows 4 to 6, row 8 to row 1.
		if err := l.Carry(p.from, p.to, []device.Mat{p.src.RowRange(0, 3), p.src.RowRange(8, 9)}, []device.Mat{p.dst.RowRange(4, 7), p.dst.RowRange(1, 2)}); err != nil {
			t.Fatal(err)
		}
		p.from.CopyIn(p.src, make([]byte, len(sent))) // the next step
		if err := p.from.Synchronize(); err != nil {
			t.Fatal(err)
		}
		got, row := make([]byte, len(beside)), 80
		p.to.CopyOut(got, p.dst)
		if err := p.to.Synchronize(); err != nil {
			t.Fatal(err)
		}
		copy(beside[4*row:], sent[:3*row])
		copy(beside[row:2*row], sent[8*row:])
		if string(got) != string(beside) {
			t.Errorf("%s: %x, want %x", l.Name(), got, beside)
		}
	}
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)*7 + seed
	}
	return b
}
