package planner

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func plan(t *testing.T, devices []Device, components ...Component) *Plan {
	t.Helper()
	p, err := New(devices, components)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestTable(t *testing.T) {
	p := plan(t, []Device{{"memory", 64 << 30, 60 << 30}, {"cuda:0", 8 << 30, 7 << 30}, {"odd", 0, 0}},
		Component{"memory", "experts", "26 layers of 64, BF16", 20 << 30},
		Component{"cuda:0", "attention", "BF16", 5<<30 + 1<<29},
		Component{"memory", "shared experts", "", 0},
		Component{"cuda:0", "KV cache", "4096 tokens, BF16", 2 << 30},
		Component{"memory", "runtime", "heap and stacks", 100 << 20},
		Component{"odd", "head", "", 1023})
	const want = `memory       bytes        size       share
  experts    21474836480  20.0 GiB   31.2 %  26 layers of 64, BF16
  runtime    104857600    100.0 MiB  0.2 %   heap and stacks
  total      21579694080  20.1 GiB   31.4 %  fits: 60.0 GiB free of 64.0 GiB
cuda:0       bytes        size       share
  attention  5905580032   5.5 GiB    68.8 %  BF16
  KV cache   2147483648   2.0 GiB    25.0 %  4096 tokens, BF16
  total      8053063680   7.5 GiB    93.8 %  fits 8.0 GiB, but only 7.0 GiB is free now
odd          bytes        size       share
  head       1023         1023 B     -
  total      1023         1023 B     -       of an unknown size`
	if got := p.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if err := p.Check(); err != nil || !p.Devices[1].Tight() || p.Devices[0].Tight() {
		t.Errorf("%v", err)
	}
}

// TestRefusal: 95 % is still allowed, a byte more is not, on any device; the
// error has the whole table.
func TestRefusal(t *testing.T) {
	devices := []Device{{"memory", 1000, 900}, {"cuda:0", 2000, 0}}
	for _, x := range []struct {
		memory, cuda int64
		fits         bool
	}{{950, 1900, true}, {951, 1, false}, {1, 1901, false}, {0, 0, true}, {math.MaxInt64, 1, false}} {
		p := plan(t, devices, Component{"memory", "experts", "", x.memory}, Component{"cuda:0", "attention", "", x.cuda})
		if p.Fits() != x.fits {
			t.Errorf("%+v: fits is %t", x, p.Fits())
		}
		err := p.Check()
		if (err == nil) != x.fits {
			t.Fatalf("%+v: %v", x, err)
		}
		if err != nil && (!errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), p.String()) || !strings.Contains(p.String(), "DOES NOT FIT: over 95 %")) {
			t.Errorf("%+v: %v", x, err)
		}
	}
	if p := plan(t, []Device{{"memory", 0, 0}}, Component{"memory", "experts", "", math.MaxInt64}); !p.Fits() {
		t.Error("an unknown size refuses")
	}
}

// TestSumsDoNotOverflow: a model of impossible size is refused, not negative.
func TestSumsDoNotOverflow(t *testing.T) {
	big := Component{"memory", "experts", "", math.MaxInt64 - 1}
	p := plan(t, []Device{{"memory", 1000, 900}}, big, big, big)
	if p.Devices[0].Planned != math.MaxInt64 || p.Fits() {
		t.Errorf("%d", p.Devices[0].Planned)
	}
}

func TestNewRefuses(t *testing.T) {
	for name, x := range map[string]struct {
		devices   []Device
		component Component
	}{
		"stray component": {[]Device{{Name: "memory"}}, Component{Device: "cuda:0", Bytes: 1}},
		"negative size":   {[]Device{{Name: "memory"}}, Component{Device: "memory", Bytes: -1}},
		"negative device": {[]Device{{Name: "memory", Total: -1}}, Component{Device: "memory"}},
		"double device":   {[]Device{{Name: "memory"}, {Name: "memory"}}, Component{Device: "memory"}},
	} {
		if _, err := New(x.devices, []Component{x.component}); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestOff(t *testing.T) {
	for _, x := range []struct {
		planned, measured int64
		want              float64
	}{{100, 100, 0}, {100, 111, 0.11}, {100, 80, -0.2}, {0, 5, 0}} {
		if got := Off(x.planned, x.measured); math.Abs(got-x.want) > 1e-12 {
			t.Errorf("%d of %d: %g", x.measured, x.planned, got)
		}
	}
}

func TestSize(t *testing.T) {
	for bytes, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1<<20 - 1: "1.0 MiB", 1536 << 20: "1.5 GiB", math.MaxInt64: "8.0 EiB",
	} {
		if got := Size(bytes); got != want {
			t.Errorf("%d: %s, want %s", bytes, got, want)
		}
	}
}
