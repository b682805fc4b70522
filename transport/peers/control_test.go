package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"krater/transport/certs"
)

// TestControl: a worker joins by name, messages pass in both directions, a failure of the leader's
// side ends the stream alone, and strangers do not get in.
func TestControl(t *testing.T) {
	ids := members(t, t.TempDir(), certs.Leader, "w1")
	l := listen(t, ids[0])
	served := make(chan error)
	go func() {
		served <- l.ServeControl(func(_ context.Context, worker string, c Control) error {
			for {
				m, err := c.Receive()
				if err != nil {
					return err
				}
				if string(m) == "fail" {
					panic("as asked")
				}
				if err := c.Send(fmt.Appendf(nil, "%s said %s", worker, m)); err != nil {
					return err
				}
			}
		})
	}()
	addr := l.Addr().String()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, last := range []string{"fail", "end"} {
		c, end, err := JoinControl(ctx, addr, ids[1])
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []string{"a", "b", ""} {
			if err := c.Send([]byte(m)); err != nil {
				t.Fatal(err)
			}
			if got, err := c.Receive(); err != nil || string(got) != "w1 said "+m {
				t.Fatalf("%q, %v", got, err)
			}
		}
		if last == "fail" {
			if err := c.Send([]byte(last)); err != nil {
				t.Fatal(err)
			}
			if got, err := c.Receive(); err == nil {
				t.Errorf("after a failure: %q", got)
			}
		}
		end()
	}
	stranger := members(t, t.TempDir(), certs.Leader, "w1")[1]
	if c, end, err := JoinControl(ctx, addr, stranger); err == nil {
		if m, err := c.Receive(); err == nil {
			t.Errorf("a stranger got %q", m)
		}
		end()
	}
	l.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestBeats: answers tell the offset of the worker's clock; silence is noticed at both ends.
func TestBeats(t *testing.T) {
	const ahead = 5 * time.Second
	now := func() int64 { return time.Now().UnixNano() }
	x, y := net.Pipe()
	pinged, answered := make(chan error), make(chan error)
	beats := 0
	go func() {
		pinged <- Ping(x, time.Millisecond, time.Minute, now, func(b Beat) {
			if off := b.Offset - ahead; off.Abs() > b.RTT {
				t.Errorf("offset %v, round trip %v", b.Offset, b.RTT)
			}
			if beats++; beats == 3 {
				x.Close()
			}
		})
	}()
	go func() { answered <- Answer(y, time.Minute, func() int64 { return now() + int64(ahead) }) }()
	for _, end := range []chan error{pinged, answered} {
		if err := <-end; err == nil || errors.Is(err, ErrSilent) {
			t.Errorf("a closed connection: %v", err)
		}
	}
	x, y = net.Pipe()
	defer x.Close()
	defer y.Close()
	if err := Answer(x, time.Millisecond, now); !errors.Is(err, ErrSilent) {
		t.Errorf("no question: %v", err)
	}
	if err := Ping(y, time.Millisecond, 10*time.Millisecond, now, func(Beat) {}); !errors.Is(err, ErrSilent) {
		t.Errorf("no answer: %v", err)
	}
}
