package benches

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"krater/actors/local"
	"krater/actors/local/config"
	"krater/cmd/krater/console"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/link"
)

type linksCmd struct {
	Device config.Kind `help:"The two GPUs to join." default:"cuda:0,cuda:1"`
	Bytes  []int       `help:"Bytes of the rows of a hop." default:"14336,16777216"`
	Rounds int         `help:"Hops for each size; the report has their median." default:"200"`
	JSON   bool        `name:"json" help:"Print the report as JSON."`
}

// linkReport is the report of the command.
type linkReport struct {
	From  string     `json:"from"`
	To    string     `json:"to"`
	Used  string     `json:"used"` // the fastest kind that works
	Kinds []linkKind `json:"kinds"`
}

// linkKind has the measurements of a kind of link.
type linkKind struct {
	Name   string    `json:"name"`
	Fault  string    `json:"fault,omitempty"`  // why it did not pass its test
	Caught string    `json:"caught,omitempty"` // the error after rows were changed on purpose
	Hops   []linkHop `json:"hops,omitempty"`
}

// linkHop is one size of rows.
type linkHop struct {
	Bytes   int     `json:"bytes"`
	HopUs   float64 `json:"hop_us"`   // from the end of the sender's work until the host knows that the rows are there and right
	CopyUs  float64 `json:"copy_us"`  // of that, the copies, by the receiver's clock
	CheckUs float64 `json:"check_us"` // of that, the sum of the rows on one device
	GBps    float64 `json:"gbps"`     // of the copies
}

// Run implements the command.
func (c *linksCmd) Run(e *console.Env) error {
	if c.Rounds < 1 || len(c.Bytes) == 0 || slices.Min(c.Bytes) < 4 || slices.Max(c.Bytes) > 1<<30 {
		return errors.New("want 1 round or more, and sizes from 4 bytes to 1 GiB")
	}
	list, _, err := local.Settle(config.Options{Device: c.Device}, console.ReportOn(e))
	if err != nil {
		return err
	}
	defer local.CloseRanks(list)
	if len(list) != 2 || list[0].GPU == nil || list[1].GPU == nil {
		return fmt.Errorf("--device %s: want two GPUs", c.Device)
	}
	r, err := c.measure(list[0], list[1])
	if err != nil {
		return err
	}
	if c.JSON {
		return console.WriteJSON(e.Out, r)
	}
	for _, k := range r.Kinds {
		if k.Fault != "" {
			fmt.Fprintf(e.Out, "%s: does not work: %s\n", k.Name, k.Fault)
			continue
		}
		for _, h := range k.Hops {
			fmt.Fprintf(e.Out, "%s: %d bytes: a hop takes %.1f us, of that the copies %.1f us (%.1f GB/s) and each sum %.1f us\n", k.Name, h.Bytes, h.HopUs, h.CopyUs, h.GBps, h.CheckUs)
		}
		fmt.Fprintf(e.Out, "%s: rows that were changed on purpose: %s\n", k.Name, k.Caught)
	}
	_, err = fmt.Fprintf(e.Out, "a pipeline uses: %s\n", r.Used)
	return err
}

func (c *linksCmd) measure(a, b local.Rank) (*linkReport, error) {
	r := &linkReport{From: a.Name(), To: b.Name()}
	l, err := newLane(a, b, slices.Max(c.Bytes))
	if err != nil {
		return nil, err
	}
	defer l.close()
	for _, kind := range []link.Kind{link.Peer, link.Bounce} {
		var pair link.Pair
		h, fallen, err := link.Open(&pair, []link.Kind{kind}, l.from, l.to, l.src, l.dst, 0)
		if err != nil {
			r.Kinds = append(r.Kinds, linkKind{Name: strings.SplitN(errors.Join(append(fallen, err)...).Error(), ":", 2)[0], Fault: err.Error()})
			continue
		}
		k := linkKind{Name: h.Name()}
		for _, n := range c.Bytes {
			x, err := c.hop(l, h, &pair, n)
			if err != nil {
				h.Close()
				return nil, err
			}
			k.Hops = append(k.Hops, x)
		}
		h.Close()
		k.Caught = l.planted(kind)
		if r.Kinds = append(r.Kinds, k); r.Used == "" {
			r.Used = k.Name
		}
	}
	return r, nil
}

// hop measures hops of n bytes.
func (c *linksCmd) hop(l *lane, h *link.Hop, pair *link.Pair, n int) (x linkHop, err error) {
	rows := max(1, n/l.src.Cols/4)
	src, dst := l.src.RowRange(0, rows), l.dst.RowRange(0, rows)
	x.Bytes = src.Bytes()
	before := cost(pair, h.Name())
	var took, sums []time.Duration
	for i := range c.Rounds + 1 {
		if err := errors.Join(l.from.Synchronize(), l.to.Synchronize()); err != nil {
			return x, err
		}
		began := time.Now()
		err := h.Carry(l.from, l.to, []device.Mat{src}, []device.Mat{dst})
		if err = errors.Join(err, l.to.Synchronize(), l.from.Synchronize()); err == nil {
			err = h.Arrived()
		}
		if err != nil {
			return x, err
		}
		if i > 0 { // the first allocates
			took = append(took, time.Since(began))
		}
	}
	after := cost(pair, h.Name())
	for range min(c.Rounds, 50) {
		d, err := l.sum(dst)
		if err != nil {
			return x, err
		}
		sums = append(sums, d)
	}
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	x.HopUs, x.CheckUs = us(middle(took)), us(middle(sums))
	if hops := after.Hops - before.Hops; hops > 0 && after.Time > before.Time {
		x.CopyUs = us(after.Time-before.Time) / float64(hops)
		x.GBps = float64(x.Bytes) / x.CopyUs / 1e3
	}
	return x, nil
}

func middle(list []time.Duration) time.Duration {
	slices.Sort(list)
	return list[len(list)/2]
}

func cost(p *link.Pair, kind string) link.Cost {
	for _, c := range p.Costs() {
		if c.Kind == kind {
			return c
		}
	}
	return link.Cost{}
}

// lane is rows on two devices, and streams there.
type lane struct {
	from, to device.Stream
	src, dst device.Mat
	bridge   device.Bridge
}

// laneCols makes rows of 14 KiB.
const laneCols = 3584

func newLane(a, b local.Rank, bytes int) (l *lane, err error) {
	l = &lane{}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	rows := (bytes + 4*laneCols - 1) / (4 * laneCols)
	if l.src, err = device.AllocMat(a, tensor.F32, rows, laneCols); err != nil {
		return nil, err
	}
	if l.dst, err = device.AllocMat(b, tensor.F32, rows, laneCols); err != nil {
		return nil, err
	}
	if l.from, err = a.NewStream(); err != nil {
		return nil, err
	}
	if l.to, err = b.NewStream(); err != nil {
		return nil, err
	}
	l.bridge, err = b.Accelerator().NewBridge(a, 0)
	return l, err
}

func (l *lane) close() {
	for _, s := range []device.Stream{l.from, l.to} {
		if s != nil {
			s.Close()
		}
	}
	for _, m := range []device.Mat{l.src, l.dst} {
		if !m.Zero() {
			m.Buf.Free()
		}
	}
	if l.bridge != nil {
		l.bridge.Close()
	}
}

// sum is how long the receiver takes to add up rows.
func (l *lane) sum(rows device.Mat) (time.Duration, error) {
	clock := l.to.Clock()
	l.bridge.Sum(l.to, 0, []device.Mat{rows}) // wakes the device
	began := clock.Timestamp()
	l.bridge.Sum(l.to, 0, []device.Mat{rows})
	ended := clock.Timestamp()
	if err := l.to.Synchronize(); err != nil {
		return 0, err
	}
	defer began.Release()
	defer ended.Release()
	var ago [1]time.Duration
	ended.Ago([]device.Timestamp{began}, ago[:])
	return ago[0], nil
}

// spoiled is a link whose rows are changed after they have arrived.
type spoiled struct {
	link.Link
	from int // the first Carry with a fault
	seen *int
}

// Carry carries the rows, and puts zeros into the last of them.
func (s spoiled) Carry(from, to device.Stream, src, dst []device.Mat) error {
	err := s.Link.Carry(from, to, src, dst)
	if *s.seen++; *s.seen >= s.from && err == nil {
		m := dst[0]
		to.CopyIn(m.RowRange(m.Rows-1, m.Rows), make([]byte, 4*m.Cols))
	}
	return err
}

// planted says how a hop over links of a kind reports rows that were changed.
func (l *lane) planted(kind link.Kind) string {
	seen := 0
	bad := func(w link.Way) (link.Link, bool) {
		inner, ok := kind(w)
		return spoiled{inner, 5 + 2, &seen}, ok // the test at the start has four
	}
	var pair link.Pair
	h, _, err := link.Open(&pair, []link.Kind{bad, link.Bounce}, l.from, l.to, l.src, l.dst, 0)
	if err != nil {
		return err.Error()
	}
	defer h.Close()
	for i := range 4 {
		rows := []byte(strings.Repeat(string(rune('a'+i)), l.src.Bytes()))
		l.from.CopyIn(l.src, rows)
		err := h.Carry(l.from, l.to, []device.Mat{l.src}, []device.Mat{l.dst})
		if err = errors.Join(err, l.to.Synchronize(), l.from.Synchronize()); err == nil {
			err = h.Arrived()
		}
		if err != nil {
			return fmt.Sprintf("noticed at hop %d (%v)", i+1, err)
		}
	}
	return "not noticed"
}
