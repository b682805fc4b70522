package hostsim

import (
	"testing"
	"time"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestTimestamps: on the virtual time line a timestamp is the end of what was enqueued before, and a
// wait takes until what is waited for ends; in real time a timestamp has none before it is passed.
func TestTimestamps(t *testing.T) {
	for _, timed := range []bool{true, false} {
		var o Options
		if timed {
			o.Rates = Rates{Up: Link{BytesPerSecond: 1000}}
		}
		d := simulated(t, o)
		m := alloc(t, d, tensor.I8, 1, 500)
		copies, work := newStream(t, d), newStream(t, d)
		var timing device.Timing
		began := timing.Begin(copies, 3)
		copies.CopyIn(m, make([]byte, 500))
		timing.End(copies, began, device.TimedSpan{Kind: device.CopyIn, Layer: 4, Bytes: 500})
		timing.Wait(work, copies.Record(), 4)
		end := timing.Begin(work, -1)
		if len(timing.Spans) != 2 {
			t.Fatalf("%d spans", len(timing.Spans))
		}
		c, w := timing.Spans[0], timing.Spans[1]
		list, ago := []device.Timestamp{c.From, c.To, w.From, w.To}, make([]time.Duration, 4)
		end.Ago(list, ago)
		if passed := ago[0] != device.NotPassed; passed != timed {
			t.Errorf("timed %v: before anything has run, %v", timed, ago)
		}
		if err := work.Synchronize(); err != nil {
			t.Fatal(err)
		}
		end.Ago(list, ago)
		switch {
		case w.Kind != device.CopyWait || w.Layer != 4 || c.Bytes != 500:
			t.Errorf("%+v, %+v", c, w)
		case timed && (ago[0] != 500*time.Millisecond || ago[1] != 0 || ago[2] != ago[0] || ago[3] != 0):
			t.Errorf("virtual: %v", ago)
		case !timed && (ago[3] < 0 || ago[1] < ago[3] || ago[0] < ago[1] || ago[2] < ago[0] || ago[2] > time.Minute):
			t.Errorf("real: %v", ago)
		}
		if newStream(t, simulated(t, o)).Clock().Timestamp().Ago(list[:1], ago); ago[0] != device.Never {
			t.Errorf("a timestamp of another device was %v ago", ago[0])
		}
		timing.Drop()
		var nobody *device.Timing
		if nobody.Begin(copies, 1) != nil || len(timing.Spans) != 0 {
			t.Error("timing that nobody asked for")
		}
		nobody.Wait(work, copies.Record(), 4)
		if err := work.Synchronize(); err != nil {
			t.Fatal(err)
		}
	}
}
