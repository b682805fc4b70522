package hostsim

import (
	"testing"
	"time"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestMoments: on the virtual time line a moment is the end of what was enqueued before, and a
// wait takes until what is waited for ends; in real time a moment has none before it is passed.
func TestMoments(t *testing.T) {
	for _, timed := range []bool{true, false} {
		var o Options
		if timed {
			o.Rates = Rates{Up: Link{BytesPerSecond: 1000}}
		}
		d := simulated(t, o)
		m := alloc(t, d, tensor.I8, 1, 500)
		copies, work := newStream(t, d), newStream(t, d)
		var laps device.Laps
		began := laps.Begin(copies, 3)
		copies.CopyIn(m, make([]byte, 500))
		laps.End(copies, began, device.Lap{Kind: device.CopyIn, Layer: 4, Bytes: 500})
		laps.Wait(work, copies.Record(), 4)
		end := laps.Begin(work, -1)
		if len(laps.List) != 2 {
			t.Fatalf("%d laps", len(laps.List))
		}
		c, w := laps.List[0], laps.List[1]
		list, ago := []device.Moment{c.From, c.To, w.From, w.To}, make([]time.Duration, 4)
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
		if newStream(t, simulated(t, o)).Clock().Moment().Ago(list[:1], ago); ago[0] != device.Never {
			t.Errorf("a moment of another device was %v ago", ago[0])
		}
		laps.Drop()
		var nobody *device.Laps
		if nobody.Begin(copies, 1) != nil || len(laps.List) != 0 {
			t.Error("laps that nobody asked for")
		}
		nobody.Wait(work, copies.Record(), 4)
		if err := work.Synchronize(); err != nil {
			t.Fatal(err)
		}
	}
}
