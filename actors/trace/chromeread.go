package trace

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

const (
	// fileMax bounds what is read of a trace file, in bytes.
	fileMax = 1 << 30
	// eventsMax bounds its events, tracksMax its actors.
	eventsMax = 4 << 20
	tracksMax = 4096
)

// chromeEvent is the form in which WriteChrome writes an event, as far as it is read back.
type chromeEvent struct {
	Ph   string  `json:"ph"`
	Name string  `json:"name"`
	Pid  int     `json:"pid"`
	Tid  int     `json:"tid"`
	ID   uint64  `json:"id"`
	Ts   float64 `json:"ts"`
	Dur  float64 `json:"dur"`
	Args struct {
		Name    string   `json:"name"`
		Device  string   `json:"device"`
		Batch   uint64   `json:"batch"`
		Request uint64   `json:"request"`
		Rows    uint32   `json:"rows"`
		Epoch   uint32   `json:"epoch"`
		Layer   *int16   `json:"layer"`
		Parts   uint16   `json:"parts"`
		Lane    uint8    `json:"lane"`
		Others  uint8    `json:"others"`
		Bytes   uint64   `json:"bytes"`
		Wait    *float64 `json:"wait_us"`
		// Of a host call's experts.
		Gather   *float64 `json:"gather_us"`
		Products float64  `json:"products_us"`
	} `json:"args"`
}

// ReadChrome reads a file that WriteChrome has written, within bounds: anything else in the reader
// gives an error. Times come back to the nanosecond.
func ReadChrome(in io.Reader) (tracks []Track, devices []string, err error) {
	r := reader{threads: map[int]int{}, processes: map[int]string{}, open: map[asyncID]*Event{}, devices: []string{"host"}}
	dec := json.NewDecoder(io.LimitReader(in, fileMax))
	if err := r.file(dec); err != nil {
		return nil, nil, fmt.Errorf("trace file: %w", err)
	}
	for i := range r.tracks {
		slices.SortStableFunc(r.tracks[i].Events, func(a, b Event) int { return cmp.Compare(a.Ended, b.Ended) })
	}
	return r.tracks, r.devices, nil
}

type reader struct {
	tracks    []Track
	threads   map[int]int    // index of a track
	processes map[int]string // but for the first, which writes the file
	open      map[asyncID]*Event
	devices   []string
	events    int
}

func (r *reader) file(dec *json.Decoder) error {
	if err := expect(dec, json.Delim('{')); err != nil {
		return err
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		if key != "traceEvents" {
			var skipped json.RawMessage
			if err := dec.Decode(&skipped); err != nil {
				return err
			}
			continue
		}
		if err := expect(dec, json.Delim('[')); err != nil {
			return err
		}
		for dec.More() {
			var e chromeEvent
			if err := dec.Decode(&e); err != nil {
				return err
			}
			if r.events++; r.events > eventsMax {
				return errors.New("too many events")
			}
			if err := r.take(&e); err != nil {
				return err
			}
		}
		if err := expect(dec, json.Delim(']')); err != nil {
			return err
		}
	}
	return expect(dec, json.Delim('}'))
}

func expect(dec *json.Decoder, want json.Delim) error {
	got, err := dec.Token()
	if err == nil && got != want {
		err = fmt.Errorf("%v where %v is to be", got, want)
	}
	return err
}

// nanos converts a time in microseconds. A time beyond a century is an error.
func nanos(us float64) (int64, error) {
	if math.IsNaN(us) || math.Abs(us) > 3e15 {
		return 0, fmt.Errorf("a time of %v us", us)
	}
	return int64(math.Round(us * 1000)), nil
}

func (r *reader) take(c *chromeEvent) error {
	if c.Ph == "M" {
		if c.Name == "process_name" && c.Pid > 1 && len(r.processes) < tracksMax {
			r.processes[c.Pid] = c.Args.Name
		}
		if c.Name != "thread_name" {
			return nil
		}
		if len(r.tracks) == tracksMax {
			return errors.New("too many actors")
		}
		r.threads[c.Tid] = len(r.tracks)
		name := c.Args.Name
		if p := r.processes[c.Pid]; p != "" {
			name = Lane(p, name)
		}
		r.tracks = append(r.tracks, Track{Name: name})
		return nil
	}
	at, err := nanos(c.Ts)
	if err != nil {
		return err
	}
	t, ok := r.threads[c.Tid]
	if !ok {
		return fmt.Errorf("an event of thread %d, which has no name", c.Tid)
	}
	switch c.Ph {
	case "X":
		return r.slice(c, t, at)
	case "b", "e":
		r.async(c, t, at)
	}
	return nil
}

func (r *reader) slice(c *chromeEvent, track int, at int64) error {
	kind, ok := KindOf(c.Name)
	if !ok {
		return fmt.Errorf("an event of kind %.40q", c.Name)
	}
	took, err := nanos(c.Dur)
	if err != nil {
		return err
	}
	a := &c.Args
	e := Event{
		Kind: kind, Batch: a.Batch, Request: a.Request, Started: at, Ended: at + took, Rows: a.Rows, Epoch: a.Epoch, Layer: -1,
		Parts: a.Parts, Lane: a.Lane, Others: a.Others, Bytes: a.Bytes,
	}
	if a.Layer != nil {
		e.Layer = *a.Layer
	}
	if a.Wait != nil {
		wait, err := nanos(*a.Wait)
		if err != nil {
			return err
		}
		e.Enqueued = at - wait
	}
	if a.Gather != nil {
		gathered, err := nanos(*a.Gather)
		if err != nil {
			return err
		}
		products, err := nanos(a.Products)
		if err != nil {
			return err
		}
		e.Gathered, e.Computed = phase(gathered), phase(gathered+products)
	}
	if a.Device != "" {
		i := slices.Index(r.devices, a.Device)
		if i < 0 && len(r.devices) < math.MaxUint8 {
			i = len(r.devices)
			r.devices = append(r.devices, a.Device)
		}
		e.Device = uint8(max(0, i))
	}
	r.tracks[track].Events = append(r.tracks[track].Events, e)
	return nil
}

// phase converts the time of a part of an event, limited to the range of its field.
func phase(ns int64) uint32 { return uint32(min(max(ns, 0), math.MaxUint32)) }

// asyncID tells the slices of a request apart.
type asyncID struct {
	request uint64
	kind    Kind
}

// async puts a request together, its prefill and its way in.
func (r *reader) async(c *chromeEvent, track int, at int64) {
	kind := Request
	switch c.Name {
	case "prefill":
		kind = Prefill
	case "gateway":
		kind = Gateway
	}
	id := asyncID{c.ID, kind}
	e := r.open[id]
	switch {
	case c.Name == "queued" && c.Ph == "e" && e != nil:
		e.Started = at
	case c.Name == "queued":
	case c.Ph == "b":
		n := &Event{Kind: kind, Request: c.ID, Started: at, Rows: c.Args.Rows, Layer: -1}
		if kind == Request {
			n.Enqueued = at
		}
		r.open[id] = n
	case e != nil:
		e.Ended = at
		r.tracks[track].Events = append(r.tracks[track].Events, *e)
		delete(r.open, id)
	}
}
