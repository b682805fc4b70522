//go:build cuda

package rt_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/rt"
)

// inChild is set in the process that runs a test again with a special GPU.
const inChild = "TEST_CHILD"

// emulated runs the test in a process of its own, with the emulated GPU that env describes. It
// reports whether this is that process.
func emulated(t *testing.T, env string) bool {
	t.Helper()
	if os.Getenv(inChild) == env {
		return true
	}
	if !cudatest.Open(t).Emulated() {
		t.Skip("what is late, and faults, are the emulated GPU's")
	}
	name := strings.ReplaceAll(t.Name(), "/", "$/^")
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^"+name+"$")
	cmd.Env = append(os.Environ(), inChild+"="+env, env)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("%s: %v\n%s", env, err, out)
	}
	return false
}

// lazy makes copies and kernels run as late as possible.
const lazy = "KR_EMU_LAZY=1"

// pages allocates memory outside the heap.
func pages(t *testing.T, n int) []byte {
	t.Helper()
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(b) })
	return b
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// second makes another stream of the GPU.
func second(t *testing.T, c *cudatest.GPU) *rt.Stream {
	t.Helper()
	s, err := c.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// one reports whether all bytes of b are v.
func one(b []byte, v byte) bool { return bytes.Count(b, []byte{v}) == len(b) }

// TestPinnedMemoryIsReadInPlace: pinned memory of any size is read by every stream when the GPU
// gets there. Memory that is only partly pinned is copied at once, and so is memory that was
// released.
func TestPinnedMemoryIsReadInPlace(t *testing.T) {
	if !emulated(t, lazy) {
		return
	}
	c := cudatest.Open(t)
	b := pages(t, 3<<20)
	in := b[4096 : 2<<20]
	release, err := c.Pin(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name string
		src  []byte
		late bool
	}{
		{"all of it", in, true}, {"a few bytes", in[7:20], true}, {"its end", in[len(in)-9:], true},
		{"from before it", b[4095:8192], false}, {"to behind it", b[1<<20 : 2<<20+1], false}, {"behind it", b[2<<20:], false},
	} {
		for name, s := range map[string]*rt.Stream{"the stream": c.Stream(), "another": second(t, c)} {
			at := c.Alloc(len(x.src))
			fill(b, 1)
			s.CopyIn(at, x.src)
			s.Record()
			fill(b, 2)
			if err := s.Synchronize(); err != nil {
				t.Fatal(err)
			}
			want := byte(1)
			if x.late {
				want = 2
			}
			if got := cudatest.Download[byte](c, at, len(x.src)); !one(got, want) {
				t.Errorf("%s, %s: begins with %d, want %d", x.name, name, got[0], want)
			}
		}
	}
	if err := errors.Join(release(), release()); err != nil {
		t.Error(err)
	}
	at := c.Alloc(100)
	c.Stream().CopyIn(at, in[:100])
	fill(in, 3)
	if got := cudatest.Download[byte](c, at, 100); !one(got, 2) {
		t.Errorf("released: %d", got[0])
	}
	if _, err := c.Pin(in); err != nil {
		t.Error("pinned once more:", err)
	}
}

// TestPinnedMemoryIsWrittenInPlace: copies to the host of any size run in the order of the
// stream's work. Memory that is only partly pinned is copied through staging memory.
func TestPinnedMemoryIsWrittenInPlace(t *testing.T) {
	c := cudatest.Open(t)
	s := c.Stream()
	const n = 3 << 20
	b, at := pages(t, n), c.Alloc(n)
	release, err := c.Pin(b[:2<<20])
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range [][2]int{{0, 2 << 20}, {5, 100}, {1 << 20, n}, {2 << 20, n}} {
		fill(b, 0xee)
		part, v := b[x[0]:x[1]], byte(i+1)
		s.Begin()
		s.List.Fill(at, n, v)
		s.CopyOut(part, at+launch.Ptr(x[0]))
		s.Begin()
		s.List.Fill(at, n, 0x77)
		if err := s.Synchronize(); err != nil {
			t.Fatal(err)
		}
		if !one(part, v) || !one(b[:x[0]], 0xee) || !one(b[x[1]:], 0xee) {
			t.Errorf("bytes %v: begin with %d, want %d", x, part[0], v)
		}
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}

// ring copies rounds of bytes through two slots of the GPU, on a stream for copies, and from
// there to the checked memory. A copy waits for the last use of its slot, and the use waits for
// the copy. forget leaves out one of the two waits. With ahead, the waits for copies come before
// their uses.
func ring(t *testing.T, rounds int, forget string, ahead bool) (wrong int) {
	const slot = 1 << 16
	c := cudatest.Open(t)
	host := pages(t, rounds*slot)
	for i := range rounds {
		fill(host[i*slot:(i+1)*slot], byte(i+1))
	}
	release, err := c.Pin(host)
	if err != nil {
		t.Fatal(err)
	}
	work, copies := c.Stream(), second(t, c)
	slots, out := c.Alloc(2*slot), c.Alloc(rounds*slot)
	var used [2]*rt.Event
	for i := range rounds {
		at := slots + launch.Ptr(i%2*slot)
		if e := used[i%2]; e != nil && forget != "use" {
			copies.After(e)
		}
		copies.CopyIn(at, host[i*slot:(i+1)*slot])
		copied := copies.Record()
		work.List.Fill(out+launch.Ptr(i*slot), slot, 0)
		if forget != "copy" {
			work.After(copied)
		}
		work.List.Copy(out+launch.Ptr(i*slot), at, slot)
		used[i%2] = work.Record()
	}
	if ahead {
		if err := copies.Synchronize(); err != nil {
			t.Fatal(err)
		}
	}
	got := cudatest.Download[byte](c, out, rounds*slot)
	for i := range rounds {
		if !one(got[i*slot:(i+1)*slot], byte(i+1)) {
			wrong++
		}
	}
	if err := errors.Join(copies.Synchronize(), release()); err != nil {
		t.Fatal(err)
	}
	return wrong
}

// TestStreamsInTurn: two streams use slots in turn, correctly at any pace. A missing wait is
// noticed if the other stream is as late, or as early, as possible.
func TestStreamsInTurn(t *testing.T) {
	for _, x := range []struct {
		name, forget string
		ahead, wrong bool
	}{
		{"work first", "", false, false}, {"copies first", "", true, false},
		{"work that does not wait", "copy", false, true}, {"copies that do not wait", "use", true, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			if !emulated(t, lazy) {
				return
			}
			if wrong := ring(t, 20, x.forget, x.ahead); (wrong > 0) != x.wrong {
				t.Errorf("%d of 20 rounds are wrong", wrong)
			}
		})
	}
	if os.Getenv(inChild) != "" {
		return
	}
	if wrong := ring(t, 50, "", false); wrong > 0 {
		t.Errorf("%d of 50 rounds are wrong", wrong)
	}
}

// TestEventsAreUsedAgain: no more events are made than are open at once.
func TestEventsAreUsedAgain(t *testing.T) {
	if !emulated(t, "KR_EMU_FAIL=cuEventCreate:4:2") {
		return
	}
	c := cudatest.Open(t)
	s, other := c.Stream(), second(t, c)
	at := c.Alloc(64)
	var first *rt.Event
	for i := range 100 {
		s.List.Fill(at, 64, byte(i))
		e := s.Record()
		if first == nil {
			first = e
		}
		other.After(e)
		other.List.Fill(at, 64, byte(i+1))
		for _, e := range []*rt.Event{e, other.Record(), first} {
			if err := e.Wait(); err != nil || !e.Done() {
				t.Fatal(i, err)
			}
		}
	}
}

// TestWaitsKeepTheirPlace: work added before a wait does not wait, work added after it does.
func TestWaitsKeepTheirPlace(t *testing.T) {
	if !emulated(t, lazy) {
		return
	}
	c := cudatest.Open(t)
	s := c.Stream()
	const n = 3
	at, out, zeros := c.Alloc(n), c.Alloc(2*n), pages(t, 1)
	release, err := c.Pin(zeros)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n { // each a stream that runs when it is waited for
		other, to := second(t, c), launch.Ptr(i)
		other.CopyIn(at+to, zeros)
		e := other.Record()
		s.List.Copy(out+2*to, at+to, 1)
		s.After(e)
		s.List.Copy(out+2*to+1, at+to, 1)
	}
	if got := cudatest.Download[byte](c, out, 2*n); !bytes.Equal(got, []byte{0xff, 0, 0xff, 0, 0xff, 0}) {
		t.Errorf("%v", got)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}

// TestWaitsAmongCopies: a copy waits only for the waits before it.
func TestWaitsAmongCopies(t *testing.T) {
	if !emulated(t, lazy) {
		return
	}
	c := cudatest.Open(t)
	copies, other, at := second(t, c), second(t, c), c.Alloc(3)
	host := pages(t, 3)
	release, err := c.Pin(host)
	if err != nil {
		t.Fatal(err)
	}
	copy(host, []byte{1, 2, 3})
	other.List.Fill(at, 3, 9)
	e := other.Record()
	copies.CopyIn(at, host[:1])
	copies.After(e)
	copies.CopyIn(at+1, host[1:2])
	copies.CopyIn(at+2, host[2:])
	copies.Record()
	if err := copies.Synchronize(); err != nil {
		t.Fatal(err)
	}
	if got := cudatest.Download[byte](c, at, 3); !bytes.Equal(got, []byte{9, 2, 3}) {
		t.Errorf("%v, want 9 2 3: the first copy comes before what the others wait for", got)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}

// TestStepsWithEventsAreNotRepeated: steps with events do not become graphs, others do.
func TestStepsWithEventsAreNotRepeated(t *testing.T) {
	c := cudatest.Open(t)
	s, other := c.Stream(), second(t, c)
	at := c.Alloc(8)
	step := func(key uint64, event func()) (repeated bool) {
		if repeated = s.Repeat(key); !repeated {
			s.List.Fill(at, 8, 0)
			event()
			s.List.Fill(at, 4, byte(key))
			s.List.Fill(at+4, 4, byte(key))
		}
		s.Submit()
		if got := cudatest.Download[byte](c, at, 8); !one(got, byte(key)) {
			t.Errorf("step %d gives %v", key, got)
		}
		return repeated
	}
	for i := range 5 {
		if got := step(1, func() {}); got != (i >= 2) {
			t.Errorf("step %d: repeated %v", i, got)
		}
		if step(2, func() { s.Record() }) {
			t.Error("a step with a point that others wait for is repeated")
		}
		if step(3, func() { other.List.Fill(at, 8, 9); s.After(other.Record()) }) {
			t.Error("a step that waits is repeated")
		}
	}
	s.Repeat(0)
}

// TestPinRefused: the error names the memory, which is then copied like any other.
func TestPinRefused(t *testing.T) {
	for name, env := range map[string]string{
		"as it is and for reading": "KR_EMU_FAIL=cuMemHostRegister:1:1,cuMemHostRegister:1:801",
		"more than may be locked":  "KR_EMU_FAIL=cuMemHostRegister:1:2",
	} {
		t.Run(name, func(t *testing.T) {
			if !emulated(t, env) {
				return
			}
			c := cudatest.Open(t)
			b := pages(t, 2<<20)
			fill(b, 7)
			if _, err := c.Pin(b); err == nil || !strings.Contains(err.Error(), "2097152 bytes of host memory cannot be pinned") {
				t.Fatalf("%v", err)
			}
			at := c.Bytes(b)
			if got := cudatest.Download[byte](c, at, len(b)); !one(got, 7) {
				t.Error("the copy is wrong")
			}
			if release, err := c.Pin(nil); err != nil || release() != nil {
				t.Error("no memory at all:", err)
			}
		})
	}
}

// TestPinForReading: a driver that refuses pages mapped read-only may accept them if it is told
// that the GPU only reads them.
func TestPinForReading(t *testing.T) {
	if !emulated(t, "KR_EMU_FAIL=cuMemHostRegister:1:1") {
		return
	}
	c := cudatest.Open(t)
	release, err := c.Pin(pages(t, 4096))
	if err != nil {
		t.Fatal(err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}

// TestFailedCopies: a failed copy is reported to the stream, its events and their waiters, and to
// no others. A lost GPU is reported to all, and memory can still be released.
func TestFailedCopies(t *testing.T) {
	for _, env := range []string{"KR_EMU_FAIL=cuMemcpy:1:1", "KR_EMU_FAIL=cuMemcpy:1:999"} {
		t.Run(strings.ReplaceAll(env, ":", " "), func(t *testing.T) {
			if !emulated(t, env) {
				return
			}
			c := cudatest.Open(t)
			b := pages(t, 2<<20)
			release, err := c.Pin(b)
			if err != nil {
				t.Fatal(err)
			}
			at := c.Alloc(len(b))
			s, waits := second(t, c), second(t, c)
			s.CopyIn(at, b)
			e := s.Record()
			waits.After(e)
			lost := strings.HasSuffix(env, "999")
			for name, err := range map[string]error{"stream": s.Synchronize(), "event": e.Wait(), "who waits": waits.Synchronize()} {
				if err == nil || errors.Is(err, rt.ErrLost) != lost {
					t.Errorf("%s: %v", name, err)
				}
			}
			if !e.Done() {
				t.Error("an event that never comes")
			}
			if err := c.Stream().Synchronize(); (err != nil) != lost {
				t.Errorf("another stream: %v", err)
			}
			if err := release(); err != nil {
				t.Error(err)
			}
		})
	}
}
