package cores

import "testing"

func TestRegime(t *testing.T) {
	for _, c := range []struct {
		threads int
		all     float64 // of one thread's speed
		want    string
	}{
		{1, 1, ""}, {2, 0.9, "one core"}, {2, 1.2, "one core"}, {2, 1.6, "two cores"}, {2, 2.3, "two cores"},
		{16, 13, "all cores"}, {16, 8.2, "half the cores"}, {16, 3, "fewer cores"}, {16, 1, "one core"},
	} {
		if got := (Look{Threads: c.threads, One: 400e9, All: c.all * 400e9}).Regime(); got != c.want {
			t.Errorf("%d threads worth %v: %q, want %q", c.threads, c.all, got, c.want)
		}
	}
	if got := (Look{Threads: 4}).Cores(); got != 1 {
		t.Errorf("nothing measured: %d cores", got)
	}
}

func TestTake(t *testing.T) {
	if _, err := New(0); err == nil {
		t.Error("no threads were accepted")
	}
	for _, threads := range []int{1, 2, 5} {
		p, err := New(threads)
		if err != nil {
			t.Fatal(err)
		}
		look := p.Take()
		p.Close()
		// Wide of any machine: it shows a wrong unit or work that was not done.
		if look.Threads != threads || look.One < 1e7 || look.One > 1e14 || look.All < 1e7 || look.Cores() < 1 || look.Cores() > threads {
			t.Errorf("%d threads: %+v, %d cores", threads, look, look.Cores())
		}
		if testing.Verbose() {
			t.Logf("%+v: %q", look, look.Regime())
		}
	}
}
