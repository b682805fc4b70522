package stages

import (
	"math"
	"sync/atomic"
	"testing"

	"krater/kernels/device"
	"krater/stages/internal/hosttest"
)

// TestLaterMasks: a step tells the device which masks to wait for, and each comes with the step's number. Without a mask no token
// may come. Steps with masks that are known, and with later ones, are repeated as one.
func TestLaterMasks(t *testing.T) {
	st, b := choosing(t)
	flag := device.MaskFlag(st.cfg.Vocab)
	fill := func(later bool) (number int32, row []int32) {
		t.Helper()
		b.Draws[0].Later = later
		if err := st.Fill(hosttest.Stream{}, b); err != nil {
			t.Fatal(err)
		}
		c, ok := st.LogitChanges()
		table := c.Table.I32s()
		if number = table[3]; !ok || number <= 0 || (table[1] != 0) != later || later && table[1] != number || st.Later() != later {
			t.Fatalf("later %t: table %v", later, table)
		}
		if other := c.Masks.RowRange(1, 2).I32s(); other[0] != 0x3ff || other[flag] != 2*number+1 {
			t.Errorf("the mask that was known is %x with the flag %d of step %d", other[0], other[flag], number)
		}
		return number, c.Masks.RowRange(0, 1).I32s()
	}
	before := int32(0)
	for _, mask := range [][]uint32{{0x155}, nil, {0x2aa}} {
		number, row := fill(true)
		if number == before || row[flag]>>1 == number {
			t.Fatalf("the flag is %d before the mask of step %d after %d", row[flag], number, before)
		}
		before = number
		st.GiveMask(0, mask)
		if want := 2*number + int32(len(mask)); row[flag] != want || mask != nil && row[0] != int32(mask[0]) {
			t.Errorf("mask %x: the device has %x with the flag %d, want %d", mask, row[0], row[flag], want)
		}
		if st.NoMasks(); row[flag]>>1 != number || row[flag]&1 != int32(len(mask)) {
			t.Errorf("mask %x is withdrawn: flag %d", mask, row[flag])
		}
		if st.MasksLate() {
			t.Error("late")
		}
	}
	number, row := fill(true)
	if st.NoMasks(); row[flag] != 2*number {
		t.Errorf("given up: flag %d of step %d", row[flag], number)
	}
	if row[flag+1] = number; !st.MasksLate() {
		t.Error("the device has given up the wait, and nobody knows")
	}
	if fill(true); st.MasksLate() {
		t.Error("late in the step after it")
	}
	st.Spans, st.Prefill, st.AllLogits = st.Spans[:1], nil, false
	later := st.stepKey()
	st.Step.Draws[0].Later, st.Step.Draws[0].Mask = false, []uint32{1}
	if known := st.stepKey(); later == 0 || later != known {
		t.Errorf("keys %x with a later mask, %x with one that is known", later, known)
	}
}

// TestMaskNumbers: numbers of masks begin again after 2^31-1, without 0.
func TestMaskNumbers(t *testing.T) {
	m := masks{number: math.MaxInt32 - 1}
	if a, b := m.next(), m.next(); a != math.MaxInt32 || b != 1 {
		t.Errorf("%d, %d", a, b)
	}
}

// TestMasksGivenUp: a mask that comes while the step is given up reaches the device.
func TestMasksGivenUp(t *testing.T) {
	st, b := choosing(t)
	b.Draws[0].Later = true
	for range 100 {
		if err := st.Fill(hosttest.Stream{}, b); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() { st.NoMasks(); close(done) }()
		st.GiveMask(0, []uint32{5})
		<-done
		if flag := atomic.LoadUint32(&st.masks.row(0)[st.masks.flag]); flag != 2*st.masks.number+1 {
			t.Fatalf("flag %d of step %d", flag, st.masks.number)
		}
	}
}
