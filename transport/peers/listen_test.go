package peers

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/hop"
	"krater/transport/certs"
)

// members makes identities of one authority.
func members(t testing.TB, dir string, names ...string) (ids []*certs.Identity) {
	t.Helper()
	if _, err := certs.Make(dir, names, time.Hour); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		id, err := certs.Load(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

func listen(t testing.TB, id *certs.Identity) *Listener {
	t.Helper()
	l, err := Listen("127.0.0.1:0", id, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// secured is two ends of a hop with mutual TLS.
func secured(t testing.TB, frameBytes int) (a, b *Conn) {
	t.Helper()
	ids := members(t, t.TempDir(), certs.Leader, certs.Worker)
	l := listen(t, ids[0])
	got := make(chan net.Conn)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	go func() {
		c, err := l.Expect(ctx, Token{1})
		if err != nil {
			t.Error(err)
		}
		got <- c
	}()
	for { // until it is expected
		x, err := Dial(ctx, l.Addr().String(), certs.Leader, ids[1], Token{1})
		if err != nil {
			if ctx.Err() != nil {
				t.Fatal(err)
			}
			continue
		}
		a, b = NewConn(x, Options{Peer: certs.Leader, FrameBytes: frameBytes}), NewConn(<-got, Options{Peer: certs.Worker, FrameBytes: frameBytes})
		t.Cleanup(func() { a.Close(); b.Close() })
		return a, b
	}
}

// TestMutualTLS: frames pass between members; who is no member, or asks for a hop that is not expected,
// is refused.
func TestMutualTLS(t *testing.T) {
	a, b := secured(t, 1<<20)
	for _, x := range [][2]*Conn{{a, b}, {b, a}} {
		if err := x[0].Send(&hop.Frame{Kind: hop.Step, ID: 7, Meta: []byte("step")}); err != nil {
			t.Fatal(err)
		}
		f, err := x[1].Receive()
		if err != nil || f.ID != 7 || string(f.Meta) != "step" {
			t.Fatalf("%+v, %v", f, err)
		}
	}
	ids, others := members(t, t.TempDir(), certs.Leader, certs.Worker), members(t, t.TempDir(), certs.Leader, certs.Worker)
	l := listen(t, ids[0])
	addr := l.Addr().String()
	for what, dial := range map[string]func() (net.Conn, error){
		"a token of no hop":       func() (net.Conn, error) { return Dial(t.Context(), addr, certs.Leader, ids[1], Token{2}) },
		"a leader of other certs": func() (net.Conn, error) { return Dial(t.Context(), addr, certs.Leader, others[1], Token{1}) },
		"another member":          func() (net.Conn, error) { return Dial(t.Context(), addr, certs.Worker, ids[1], Token{1}) },
		"no certificate": func() (net.Conn, error) {
			c, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocolHop}})
			if err != nil {
				return nil, err
			}
			_, err = c.Read(make([]byte, 1))
			return c, err
		},
		"plain TCP": func() (net.Conn, error) {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				return nil, err
			}
			if _, err := c.Write(make([]byte, 64)); err != nil {
				return nil, err
			}
			_, err = c.Read(make([]byte, 64))
			for err == nil {
				_, err = c.Read(make([]byte, 64))
			}
			return c, err
		},
	} {
		if c, err := dial(); err == nil {
			t.Errorf("%s: connected to %v", what, c.RemoteAddr())
		}
	}
}

// TestExpectEnds: a hop whose peer does not come is given up.
func TestExpectEnds(t *testing.T) {
	l := listen(t, members(t, t.TempDir(), certs.Leader)[0])
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Expect(ctx, Token{}); err == nil {
		t.Error("a peer came")
	}
	l.Close()
	if _, err := l.Expect(t.Context(), Token{}); err == nil {
		t.Error("a peer came after the end")
	}
}

// BenchmarkHop measures one way of a frame, as half of a round trip, and the rate of large ones.
func BenchmarkHop(b *testing.B) {
	for _, kind := range []struct {
		name string
		pair func(testing.TB, int) (x, y *Conn)
	}{{"plain", connected}, {"tls", secured}} {
		b.Run(kind.name+"/14KiB", func(b *testing.B) {
			x, y := kind.pair(b, 64<<20)
			go echo(y)
			f := &hop.Frame{Kind: hop.Step, Meta: make([]byte, 64), Rows: [3][]byte{make([]byte, 14<<10)}}
			var times []time.Duration
			for b.Loop() {
				began := time.Now()
				if err := x.Send(f); err != nil {
					b.Fatal(err)
				}
				g, err := x.Receive()
				if err != nil {
					b.Fatal(err)
				}
				g.Release()
				times = append(times, time.Since(began)/2)
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1e3, "us-p50")
			b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds())/1e3, "us-p99")
		})
		b.Run(kind.name+"/16MiB", func(b *testing.B) {
			x, y := kind.pair(b, 64<<20)
			f := &hop.Frame{Kind: hop.Step, Bulk: true, Rows: [3][]byte{make([]byte, 16<<20)}}
			b.SetBytes(16 << 20)
			done := make(chan error)
			go func() {
				for range b.N {
					g, err := y.Receive()
					if err != nil {
						done <- err
						return
					}
					g.Release()
				}
				done <- nil
			}()
			b.ResetTimer()
			for range b.N {
				if err := x.Send(f); err != nil {
					b.Fatal(err)
				}
			}
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}

// echo sends every frame back.
func echo(c *Conn) {
	for {
		f, err := c.Receive()
		if err != nil {
			return
		}
		err = c.Send(f)
		f.Release()
		if err != nil {
			return
		}
	}
}
