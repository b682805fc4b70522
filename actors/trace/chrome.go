package trace

import (
	"bufio"
	"cmp"
	"encoding/json"
	"io"
	"slices"
	"strconv"
)

// WriteChrome writes tracks in the Trace Event Format that ui.perfetto.dev and chrome://tracing
// open. An actor is a thread of its process, an event a slice with its figures as arguments. Arrows follow a batch
// from actor to actor. A request is an asynchronous slice of its own, which contains its
// submission, its time in the queue and that of its prompt. devices are the names of Event.Device.
func WriteChrome(w io.Writer, tracks []Track, devices []string) error {
	c := &chrome{out: bufio.NewWriter(w), devices: devices}
	c.text(`{"displayTimeUnit":"ns","traceEvents":[`)
	pids := map[string]int{"": 1}
	c.meta("process_name", place{1, 0}, "krater")
	var all []placed
	for i, t := range tracks {
		process, actor := Process(t.Name)
		at := place{pids[process], threadFirst + i}
		if at.process == 0 {
			at.process = len(pids) + 1
			pids[process] = at.process
			c.meta("process_name", place{at.process, 0}, process)
		}
		c.meta("thread_name", at, actor)
		for j := range t.Events {
			all = append(all, placed{at, &t.Events[j]})
		}
	}
	slices.SortStableFunc(all, func(a, b placed) int {
		return cmp.Or(cmp.Compare(a.Started, b.Started), cmp.Compare(b.Ended, a.Ended))
	})
	left := map[uint64]int{} // events still to come, by batch
	for _, e := range all {
		if e.flows() {
			left[e.Batch]++
		}
	}
	begun := map[uint64]bool{}
	for _, e := range all {
		switch e.Kind {
		case Request:
			c.request(e)
			continue
		case Prefill, Gateway: // several at a time, which slices of one thread must not be
			c.async("b", e.Kind.String(), e, e.Started)
			c.async("e", e.Kind.String(), e, e.Ended)
			continue
		}
		c.slice(e)
		if e.flows() {
			left[e.Batch]--
			c.arrow(e, !begun[e.Batch], left[e.Batch] == 0)
			begun[e.Batch] = true
		}
	}
	c.text("\n]}\n")
	return c.out.Flush()
}

// threadFirst is the number of the first actor's thread: the process's own number would make
// it the main one.
const threadFirst = 2

// place is the numbers of a process and of a thread.
type place struct{ process, thread int }

// placed is an event with its actor's place.
type placed struct {
	place
	*Event
}

func (e placed) flows() bool {
	return e.Batch != 0 && e.Kind != Request && e.Kind != Prefill && e.Kind != CopyWait && !e.Kind.aside()
}

// chrome writes JSON by hand: a trace has 100,000 events. Errors of the writer
// stay in out until Flush.
type chrome struct {
	out     *bufio.Writer
	buf     []byte
	comma   bool
	devices []string
}

func (c *chrome) text(s string) { c.out.WriteString(s) }

// open begins an object with the fields that all have.
func (c *chrome) open(phase, name string, at place) {
	if c.comma {
		c.buf = append(c.buf, ',')
	}
	c.comma = true
	c.buf = append(c.buf, "\n{\"ph\":\""...)
	c.buf = append(c.buf, phase...)
	c.buf = append(c.buf, "\",\"name\":\""...)
	c.buf = append(c.buf, name...)
	c.buf = append(c.buf, '"')
	c.number("pid", uint64(at.process))
	c.number("tid", uint64(at.thread))
}

func (c *chrome) number(key string, v uint64) {
	c.key(key)
	c.buf = strconv.AppendUint(c.buf, v, 10)
}

func (c *chrome) key(key string) {
	if c.buf[len(c.buf)-1] != '{' {
		c.buf = append(c.buf, ',')
	}
	c.buf = append(c.buf, '"')
	c.buf = append(c.buf, key...)
	c.buf = append(c.buf, "\":"...)
}

// micros writes ns as microseconds with three decimals.
func (c *chrome) micros(key string, ns int64) {
	c.key(key)
	if ns < 0 {
		c.buf = append(c.buf, '-')
		ns = -ns
	}
	c.buf = strconv.AppendInt(c.buf, ns/1000, 10)
	c.buf = append(c.buf, '.', byte('0'+ns/100%10), byte('0'+ns/10%10), byte('0'+ns%10))
}

func (c *chrome) close(end string) {
	c.buf = append(c.buf, end...)
	c.out.Write(c.buf)
	c.buf = c.buf[:0]
}

func (c *chrome) meta(kind string, at place, name string) {
	c.open("M", kind, at)
	c.key("args")
	c.buf = append(c.buf, '{')
	c.quote("name", name)
	c.close("}}")
}

func (c *chrome) quote(key, text string) {
	c.key(key)
	quoted, _ := json.Marshal(text) // a string always marshals
	c.buf = append(c.buf, quoted...)
}

func (c *chrome) slice(e placed) {
	c.open("X", e.Kind.String(), e.place)
	c.micros("ts", e.Started)
	c.micros("dur", e.Ended-e.Started)
	c.key("args")
	c.buf = append(c.buf, '{')
	c.number("batch", e.Batch)
	c.number("epoch", uint64(e.Epoch))
	c.number("rows", uint64(e.Rows))
	if e.Request != 0 {
		c.number("request", e.Request)
	}
	if e.Layer >= 0 {
		c.number("layer", uint64(e.Layer))
	}
	if e.Parts > 0 {
		c.number("parts", uint64(e.Parts))
	}
	if e.Lane > 0 { // the first says nothing: mostly there is one
		c.number("lane", uint64(e.Lane))
	}
	if e.Bytes > 0 {
		c.number("bytes", e.Bytes)
	}
	if e.Others > 0 {
		c.number("others", uint64(e.Others))
	}
	if e.Device > 0 && int(e.Device) < len(c.devices) {
		c.quote("device", c.devices[e.Device])
	}
	if e.Enqueued != 0 {
		c.micros("wait_us", e.Started-e.Enqueued)
	}
	if e.Computed != 0 {
		c.micros("gather_us", int64(e.Gathered))
		c.micros("products_us", int64(e.Computed-e.Gathered))
		c.micros("answer_us", e.Ended-e.Started-int64(e.Computed))
	}
	c.close("}}")
}

// arrow is a step of a batch's flow; it binds to the slice around its time. A
// batch seen in one event only has none.
func (c *chrome) arrow(e placed, first, last bool) {
	phase := "t"
	switch {
	case first && last:
		return
	case first:
		phase = "s"
	case last:
		phase = "f"
	}
	c.open(phase, "batch", e.place)
	c.key("cat")
	c.buf = append(c.buf, "\"batch\",\"bp\":\"e\""...)
	c.number("id", e.Batch)
	c.micros("ts", e.Started)
	c.close("}")
}

func (c *chrome) request(e placed) {
	accepted := e.Enqueued
	if accepted == 0 {
		accepted = e.Started
	}
	c.async("b", "request", e, accepted)
	c.async("b", "queued", e, accepted)
	c.async("e", "queued", e, e.Started)
	c.async("e", "request", e, e.Ended)
}

func (c *chrome) async(phase, name string, e placed, at int64) {
	c.open(phase, name, e.place)
	// Slices of one category and id must nest. A request may be in its first batch, and out of
	// the queue, before the gateway has heard that it was taken.
	category := Request.String()
	if e.Kind == Gateway {
		category = Gateway.String()
	}
	c.quote("cat", category)
	c.number("id", e.Request)
	c.micros("ts", at)
	if phase == "b" && name != "queued" {
		c.key("args")
		c.buf = append(c.buf, '{')
		c.number("rows", uint64(e.Rows))
		c.buf = append(c.buf, '}')
	}
	c.close("}")
}
