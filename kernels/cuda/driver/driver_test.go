//go:build cuda

package driver

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"gorgonia.org/cu"
)

// These tests run on a machine without a GPU. That the program starts there at all is half of the
// test.

func TestAvailableSaysWhy(t *testing.T) {
	err := Available()
	var e *Error
	if err != nil && !errors.Is(err, ErrNoDriver) && !errors.As(err, &e) {
		t.Fatalf("neither ErrNoDriver nor an Error: %v", err)
	}
	if _, ownerErr := NewOwner(0); err != nil && ownerErr == nil {
		t.Fatal("an owner without a GPU")
	}
}

func TestErrorNamesCallAndCode(t *testing.T) {
	err := check("cuGraphLaunch", 1)
	if !errors.Is(err, &Error{Code: 1}) || errors.Is(err, &Error{Code: 2}) || check("cuGraphLaunch", 0) != nil {
		t.Fatal(err)
	}
}

func TestSpinUntil(t *testing.T) {
	var word uint32
	if err := SpinUntil(&word, 1, 2*time.Millisecond); !errors.Is(err, ErrDeadline) {
		t.Fatal(err)
	}
	go func() { atomic.StoreUint32(&word, 1) }()
	if err := SpinUntil(&word, 1, time.Second); err != nil {
		t.Fatal(err)
	}
}

// serving makes an owner that has no GPU.
func serving(t *testing.T) *Owner {
	o := newOwner()
	go func() {
		defer close(o.gone)
		o.serve()
	}()
	t.Cleanup(o.Close)
	return o
}

func TestOwnerOutlivesPanics(t *testing.T) {
	o := serving(t)
	if err := o.Do(func() error { panic("on purpose") }); err == nil {
		t.Fatal("no error")
	}
	if err := o.Do(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	o.Close()
	if err := o.Do(func() error { return nil }); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

func TestOwnerOfALostGPURunsNothing(t *testing.T) {
	for _, lost := range []error{cu.IllegalAddress, Check("cuLaunchKernel", int(cu.LaunchFailed))} {
		o := serving(t)
		if err := o.Do(func() error { return fmt.Errorf("step 3: %w", lost) }); !errors.Is(err, lost) {
			t.Fatal(err)
		}
		ran := false
		err := o.Do(func() error { ran = true; return nil })
		if ran || !errors.Is(err, lost) || !Sticky(err) {
			t.Errorf("ran %v, answered %v", ran, err)
		}
	}
}

func TestErrorsOfBothSourcesHaveOneCode(t *testing.T) {
	for _, c := range []struct {
		err                      error
		code                     int
		sticky, notReady, memory bool
	}{
		{nil, 0, false, false, false},
		{errors.New("other"), 0, false, false, false},
		{cu.OutOfMemory, 2, false, false, true},
		{Check("cuMemAlloc", 2), 2, false, false, true},
		{fmt.Errorf("x: %w", cu.NotReady), 600, false, true, false},
		{Check("x", 700), 700, true, false, false},
		{fmt.Errorf("x: %w", cu.EccUncorrectable), 214, true, false, false},
		{cu.MisalignedAddress, 716, true, false, false},
		{cu.HardwareStackError, 714, true, false, false},
		{cu.InvalidValue, 1, false, false, false},
	} {
		if Code(c.err) != c.code || Sticky(c.err) != c.sticky || NotReady(c.err) != c.notReady || OutOfMemory(c.err) != c.memory {
			t.Errorf("%v: code %d, sticky %v, not ready %v, out of memory %v", c.err, Code(c.err), Sticky(c.err), NotReady(c.err), OutOfMemory(c.err))
		}
	}
}
