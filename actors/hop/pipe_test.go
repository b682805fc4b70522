package hop

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"testing/synctest"
)

func TestPipeCopies(t *testing.T) {
	a, b := Pipe("leader", "worker")
	if a.Name() != "worker" || b.Name() != "leader" {
		t.Fatalf("peers are called %s and %s", a.Name(), b.Name())
	}
	rows := []byte{1, 2, 3}
	f := Frame{Kind: Step, Batch: 1, Epoch: 2, ID: 3, Sent: 4, Meta: []byte("step"), Rows: [3][]byte{rows, nil, {7}}}
	if err := a.Send(&f); err != nil {
		t.Fatal(err)
	}
	rows[0], f.Meta[0] = 9, 'X'
	got, err := b.Receive()
	if err != nil {
		t.Fatal(err)
	}
	if got.Kind != Step || got.Batch != 1 || got.Epoch != 2 || got.ID != 3 || got.Sent != 4 || string(got.Meta) != "step" ||
		!bytes.Equal(got.Rows[0], []byte{1, 2, 3}) || got.Rows[1] != nil || len(got.Rows[2]) != 1 || got.Bytes() != 8 {
		t.Errorf("received %+v", got)
	}
	got.Release()
	f.Rows = [3][]byte{}
	if n := testing.AllocsPerRun(100, func() {
		if err := a.Send(&f); err != nil {
			t.Fatal(err)
		}
		if got, err = b.Receive(); err != nil || got.Rows[0] != nil {
			t.Fatal(got, err)
		}
		got.Release()
	}); n != 0 {
		t.Errorf("%v allocations for a frame", n)
	}
}

func TestPipeClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe("leader", "worker")
		failed := make(chan error, 1)
		go func() {
			_, err := b.Receive()
			failed <- err
		}()
		synctest.Wait()
		a.Close()
		a.Close()
		if err := <-failed; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Receive reports %v", err)
		}
		if err := b.Send(&Frame{}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Send reports %v", err)
		}
	})
}

// A peer that takes nothing costs its connection, and the sender no more than the deadline.
func TestPipeFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe("leader", "worker")
		sent := 0
		var err error
		for err == nil && sent <= pipeFrames {
			if err = a.Send(&Frame{Kind: Step}); err == nil {
				sent++
			}
		}
		if sent != pipeFrames || !errors.Is(err, errWait) {
			t.Errorf("sent %d frames, then %v", sent, err)
		}
		if _, err := b.Receive(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Receive reports %v", err)
		}
	})
}
