package offload

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/hostsim"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/expert"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights"
)

const golden = "../../testdata/goldens/deepseek_v2_lite"

// rig is a model whose experts are in host memory, the rest on a device.
type rig struct {
	*Experts
	host  *cpu.Device
	sim   *hostsim.Device
	parts *load.Parts
	s     device.Stream
}

func newRig(t *testing.T) *rig {
	t.Helper()
	host, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	sim, err := hostsim.New(hostsim.Options{CPU: host})
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(golden, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	set, err := weights.Open(golden)
	if err != nil {
		t.Fatal(err)
	}
	o := load.Options{Limits: stages.Limits{Tokens: 40, Seqs: 1, Blocks: 1, BlockTokens: 40}, Routed: host}
	r := &rig{host: host, sim: sim}
	if r.parts, err = load.Model(sim, cfg, set, o); err != nil {
		t.Fatal(err)
	}
	if r.Experts, err = New(sim, host, r.parts); err != nil {
		t.Fatal(err)
	}
	if r.s, err = sim.NewStream(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.parts.Close()
		set.Close()
		host.Close()
	})
	return r
}

// compute runs expert e of layer 1 for all rows on the device or the host, and
// gives what it wrote.
func (r *rig) compute(t *testing.T, onDevice bool, m *Mirror, st *stages.State, e int32) []byte {
	t.Helper()
	work := []device.ExpertRows{{Expert: e, Assign: []int32{0, 3, 4, 7}}}
	if onDevice {
		r.parts.Groups[0].Experts(r.s, st, 1, work)
	} else {
		s, _ := r.host.NewStream()
		r.Prepare(s, m, 1)
		r.Compute(s, m.State(), 1, work)
		m.Return(r.s, st, work)
	}
	out := make([]byte, st.ExpertOut.Bytes())
	r.s.CopyOut(out, st.ExpertOut)
	if err := r.s.Synchronize(); err != nil {
		t.Fatal(err)
	}
	return out
}

// batch is a state with random input rows, fetched to a mirror.
func (r *rig) batch(t *testing.T) (*stages.State, *Mirror) {
	t.Helper()
	st, err := stages.NewState(r.sim, r.parts.Config, r.parts.Limits)
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.NewMirror()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close(); m.Close() })
	b := &stages.Step{Tokens: []int32{1, 2, 3, 4}, Spans: []stages.Span{{Span: device.Span{Len: 4, Blocks: []int32{0}}}}}
	if err := st.Fill(r.s, b); err != nil {
		t.Fatal(err)
	}
	rows := kerneltest.Normal(kerneltest.Rand(1), st.Normed.Rows*st.Normed.Cols, 1)
	r.s.CopyIn(st.Normed, kerneltest.Bytes(rows))
	m.Fetch(r.s, st)
	if err := r.s.Synchronize(); err != nil {
		t.Fatal(err)
	}
	return st, m
}

// TestSlots: an expert computes alike on both sides, wherever it lies, and on the
// device only as long as it lies there.
func TestSlots(t *testing.T) {
	r := newRig(t)
	if _, err := r.Room(3); err != nil {
		t.Fatal(err)
	}
	st, m := r.batch(t)
	if want := []int{1, 2}; !slices.Equal(r.Layers(), want) {
		t.Fatalf("layers %v, want %v", r.Layers(), want)
	}
	want := map[int32][]byte{}
	for e := range int32(4) {
		want[e] = r.compute(t, false, m, st, e)
	}
	if bytes.Equal(want[0], want[1]) {
		t.Fatal("two experts give the same")
	}
	there := map[int]int32{} // by slot
	for i, c := range []struct {
		slot int
		e    int32
	}{{0, 0}, {2, 1}, {1, 2}, {0, 3}, {2, 3}, {0, 1}, {2, 2}, {1, 0}, {0, 0}} {
		if err := r.Load(r.s, c.slot, 1, int(c.e), 1); err != nil {
			t.Fatal(err)
		}
		there[c.slot] = c.e
		for e := range int32(4) {
			lies := false
			for _, x := range there {
				lies = lies || x == e
			}
			got := r.parts.Groups[0].Bank(1).Routed[e]
			if got.Gate.Zero() == lies || got.Down.Zero() == lies || got.Gate.Rows == 0 {
				t.Fatalf("after load %d: expert %d is %v, want it there: %v", i, e, got, lies)
			}
			if lies && !bytes.Equal(r.compute(t, true, m, st, e), want[e]) {
				t.Fatalf("after load %d: expert %d computes otherwise than on the host", i, e)
			}
		}
	}
	for _, bad := range [][3]int{{3, 1, 0}, {-1, 1, 0}, {0, 0, 0}, {0, 1, -1}, {0, 1, 99}} {
		if err := r.Load(r.s, bad[0], bad[1], bad[2], 1); err == nil {
			t.Errorf("%v was loaded", bad)
		}
	}
	used := r.sim.Memory().Used
	r.Close()
	if got := used - r.sim.Memory().Used; got != int64(3*r.size) {
		t.Errorf("closing gave %d bytes back, want %d", got, 3*r.size)
	}
	if bank := r.parts.Groups[0].Bank(1); bank.Routed[3].Up.Zero() || bank.Routed[3].Up.Buf.Host() == nil {
		t.Error("the group did not get its experts back")
	}
}

// TestReturnCopiesRuns: rows of the host only, neighbours in one copy.
func TestReturnCopiesRuns(t *testing.T) {
	r := newRig(t)
	st, m := r.batch(t)
	defer r.Close()
	width := int64(4 * st.ExpertOut.Cols)
	for text, c := range map[string]struct {
		assign [][]int32
		copies int64
		rows   int64
	}{
		"none":      {nil, 0, 0},
		"all":       {[][]int32{{0, 2, 4, 6}, {1, 3, 5, 7}}, 1, 8},
		"the ends":  {[][]int32{{0}, {7}}, 2, 2},
		"two runs":  {[][]int32{{2, 6}, {1, 5}}, 2, 4},
		"all but 3": {[][]int32{{0, 1, 2, 4, 5, 6, 7}}, 2, 7},
	} {
		mark := put(t, r, st)
		var work []device.ExpertRows
		for _, a := range c.assign {
			work = append(work, device.ExpertRows{Assign: a})
		}
		host := m.st.ExpertOut.F32s()
		for i := range host {
			host[i] = float32(i + 1)
		}
		before := r.sim.Counters()
		m.Return(r.s, st, work)
		if d := r.sim.Counters().Since(before); d.CopiesUp != c.copies || d.BytesUp != c.rows*width {
			t.Errorf("%s: %d copies of %d bytes, want %d of %d", text, d.CopiesUp, d.BytesUp, c.copies, c.rows*width)
		}
		out := make([]float32, st.ExpertOut.Rows*st.ExpertOut.Cols)
		r.s.CopyOut(kerneltest.Bytes(out), st.ExpertOut)
		if err := r.s.Synchronize(); err != nil {
			t.Fatal(err)
		}
		for i, v := range out {
			row, want := int32(i/st.ExpertOut.Cols), mark
			for _, a := range c.assign {
				if slices.Contains(a, row) {
					want = float32(i + 1)
				}
			}
			if v != want {
				t.Fatalf("%s: row %d is %v, want %v", text, row, v, want)
			}
		}
	}
}

// put fills st.ExpertOut with a mark.
func put(t *testing.T, r *rig, st *stages.State) float32 {
	t.Helper()
	v := make([]float32, st.ExpertOut.Rows*st.ExpertOut.Cols)
	for i := range v {
		v[i] = -1
	}
	r.s.CopyIn(st.ExpertOut, kerneltest.Bytes(v))
	if err := r.s.Synchronize(); err != nil {
		t.Fatal(err)
	}
	return -1
}

// TestPiecesLieApart: odd sizes keep every piece aligned, and what is copied is
// where the device looks for it.
func TestPiecesLieApart(t *testing.T) {
	host, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	raw := make([]byte, 1<<14)
	for i := range raw {
		raw[i] = byte(i * 7 / 3)
	}
	buf, _ := host.Wrap(raw)
	mat := func(at, rows, cols, stride int) device.Mat {
		return device.Mat{Buf: buf, Off: at, DType: tensor.BF16, Rows: rows, Cols: cols, Stride: stride}
	}
	integers := func(at, rows, cols, group int) device.QMat {
		f := tensor.Layout{Format: tensor.INT8.By(group), Rows: rows, Cols: cols}
		return device.QMat{Layout: f, Values: buf, ValueAt: at, Scales: buf, ScaleAt: at + f.ValueBytes()}
	}
	for name, b := range map[string]expert.Bank{
		"float":   {Routed: []device.Expert{{Gate: mat(2, 3, 5, 5), Up: mat(100, 3, 5, 7), Down: mat(400, 5, 3, 3)}}},
		"integer": {Integers: []device.QExpert{{W13: integers(64, 32, 32, 32), W2: integers(4096, 32, 32, 32)}}},
	} {
		list := pieces(&b, 0)
		slot := make([]byte, 1<<14)
		end := 0
		for i, p := range list {
			if p.at%line != 0 || p.at < end || p.bytes == 0 {
				t.Errorf("%s: piece %d of %d bytes at %d, the one before ends at %d", name, i, p.bytes, p.at, end)
			}
			end = p.at + p.bytes
			copy(slot[len(slot)/2+p.at:], p.host()) // the second of two slots
		}
		to, _ := host.Wrap(slot)
		dev := expert.Bank{Routed: slices.Clone(b.Routed), Integers: slices.Clone(b.Integers)}
		own := &lists{banks: map[int]*bank{1: {host: b, dev: &dev}}, size: len(slot) / 2}
		own.absent(1, 0)
		if got := pieces(&dev, 0); got[0].buf != nil || fmt.Sprint(got[1].bytes) != fmt.Sprint(list[1].bytes) {
			t.Errorf("%s: absent is %+v", name, got)
		}
		own.present(to, 1, 1, 0)
		for i, p := range pieces(&dev, 0) {
			if p.buf != to || !bytes.Equal(p.host(), list[i].host()) {
				t.Errorf("%s: piece %d is not what was copied", name, i)
			}
		}
	}
}

// simHost is a device whose memory the host cannot address.
type simHost struct{ *hostsim.Device }

func (simHost) WeightedSumOf(device.Stream, []float32, device.Mat, []float32, []int32) {
	panic("nothing is computed")
}

// TestNotAHost: rows of a mirror must be the host's to read.
func TestNotAHost(t *testing.T) {
	r := newRig(t)
	defer r.Close()
	x := &Experts{dev: r.dev, host: simHost{r.sim}, parts: r.parts, banks: r.banks}
	used := r.sim.Memory().Used
	if _, err := x.NewMirror(); err == nil || !strings.Contains(err.Error(), "hostsim is not a host") {
		t.Errorf("got %v", err)
	}
	r.sim.Fail(hostsim.Allocation, 2)
	if _, err := x.NewMirror(); err == nil {
		t.Error("a mirror without memory")
	}
	if r.sim.Memory().Used != used {
		t.Errorf("%d bytes are left in use", r.sim.Memory().Used-used)
	}
}

// TestReturnScatters: rows of the host without neighbours go over in as many copies as
// the stage takes, and to no other place.
func TestReturnScatters(t *testing.T) {
	r := newRig(t)
	defer r.Close()
	st, err := stages.NewState(r.sim, r.parts.Config, r.parts.Limits)
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.NewMirror()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close(); m.Close() })
	b := &stages.Step{Tokens: make([]int32, 40), Spans: []stages.Span{{Span: device.Span{Len: 40, Blocks: []int32{0}}}}}
	if err := st.Fill(r.s, b); err != nil {
		t.Fatal(err)
	}
	m.Fetch(r.s, st)
	back := m.back.(*scatter)
	back.stage = back.stage.RowRange(0, 16)
	n := st.ExpertOut.Rows
	for _, every := range []int{2, 3, n} {
		mark := put(t, r, st)
		var work []device.ExpertRows
		for a := int32(1); a < int32(n); a += int32(every) {
			work = append(work, device.ExpertRows{Assign: []int32{a}})
		}
		host := m.st.ExpertOut.F32s()
		for i := range host {
			host[i] = float32(i + 1)
		}
		before := r.sim.Counters()
		m.Return(r.s, st, work)
		copies, stores := int64(2*((len(work)+15)/16)), int64((len(work)+15)/16)
		if every == n {
			copies, stores = 1, 0
		}
		if d := r.sim.Counters().Since(before); d.CopiesUp != copies || d.Launches["StoreRows"] != stores {
			t.Errorf("every %d: %d copies, %d launches, want %d and %d", every, d.CopiesUp, d.Launches["StoreRows"], copies, stores)
		}
		out := make([]float32, st.ExpertOut.Rows*st.ExpertOut.Cols)
		r.s.CopyOut(kerneltest.Bytes(out), st.ExpertOut)
		if err := r.s.Synchronize(); err != nil {
			t.Fatal(err)
		}
		for i, v := range out {
			row, want := i/st.ExpertOut.Cols, mark
			if row%every == 1 {
				want = float32(i + 1)
			}
			if v != want {
				t.Fatalf("every %d: row %d has %g, want %g", every, row, v, want)
			}
		}
	}
}
