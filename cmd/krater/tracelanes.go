package main

import (
	"bufio"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"krater/actors/trace"
)

const (
	// widthDefault is that of the picture where there is no terminal.
	widthDefault = 100
	// nameWidth is that of the lanes' names.
	nameWidth = 10
	// waitsShown is how many of the longest waits are named.
	waitsShown = 5
)

// look is how a kind of event is drawn: a letter, or a block in a colour of the terminal's
// 256.
type look struct {
	letter byte
	colour int
	name   string
}

var looks = map[trace.Kind]look{
	trace.Schedule: {'s', 103, "scheduler"}, trace.Embed: {'e', 73, "embedding"}, trace.Group: {'L', 68, "layers"}, trace.Attention: {'a', 68, "attention"},
	trace.Split: {'d', 98, "split"}, trace.Experts: {'X', 172, "experts"}, trace.Merge: {'m', 133, "merge"}, trace.Link: {'k', 71, "link"},
	trace.Head: {'h', 167, "head"}, trace.Sample: {'p', 143, "sampler"}, trace.Stream: {'t', 137, "text out"}, trace.Gateway: {'g', 245, "gateway"},
	trace.Device: {'D', 36, "step on the device"}, trace.DeviceEmbed: {'E', 73, "embedding there"},
	trace.DeviceGroup: {'G', 68, "layers there"}, trace.DeviceHead: {'H', 167, "head there"}, trace.Failure: {'!', 196, "failure"}, trace.Control: {'c', 245, "control"},
}

// laneOrder is that of a batch's way.
var laneOrder = []string{"schedule", "embed", "link", "group", "split", "merge", "pool", "head", "sample", "stream", "gateway"}

// lanesView draws a trace with characters.
type lanesView struct {
	out      *bufio.Writer
	colours  bool
	width    int
	from, to int64
}

// show draws the last steps of tracks.
func (v *lanesView) show(tracks []trace.Track, steps int) {
	batches := trace.Whole(tracks)
	batches = batches[max(0, len(batches)-steps):]
	if len(batches) == 0 {
		fmt.Fprintln(v.out, "There is no step in it.")
		return
	}
	in := map[uint64]bool{}
	for _, b := range batches {
		in[b] = true
	}
	tracks = trace.Pick(tracks, math.MaxInt, func(e *trace.Event) bool { return in[e.Batch] })
	tracks = slices.DeleteFunc(tracks, func(t trace.Track) bool { return len(t.Events) == 0 })
	slices.SortStableFunc(tracks, func(a, b trace.Track) int { return cmp.Compare(laneRank(a.Name), laneRank(b.Name)) })
	v.from, v.to = math.MaxInt64, math.MinInt64
	for _, t := range tracks {
		for i := range t.Events {
			v.from, v.to = min(v.from, t.Events[i].Started), max(v.to, t.Events[i].Ended)
		}
	}
	v.to = max(v.to, v.from+1)
	fmt.Fprintf(v.out, "%s: %s\n\n", stepsOf(batches), took(v.to-v.from))
	cells := max(20, v.width-nameWidth-10)
	v.axis(cells)
	for i := range tracks {
		v.lane(&tracks[i], cells)
	}
	v.legend(tracks)
	v.path(tracks, batches)
	v.waits(tracks)
}

func stepsOf(batches []uint64) string {
	if len(batches) == 1 {
		return fmt.Sprintf("Step %d", batches[0])
	}
	return fmt.Sprintf("Steps %d to %d", batches[0], batches[len(batches)-1])
}

func laneRank(name string) int {
	kind := strings.TrimRight(name, "0123456789")
	if i := slices.Index(laneOrder, kind); i >= 0 {
		return i
	}
	return len(laneOrder)
}

func (v *lanesView) axis(cells int) {
	const every = 20
	row := []byte(strings.Repeat(" ", nameWidth+1+cells+12))
	for at := 0; at < cells; at += every {
		ns := (v.to - v.from) * int64(at) / int64(cells)
		copy(row[nameWidth+1+at:], "|"+took(ns))
	}
	fmt.Fprintln(v.out, strings.TrimRight(string(row), " "))
}

// lane draws an actor: every cell shows the kind that it was at for most of the cell's time,
// if it was at work at all.
func (v *lanesView) lane(t *trace.Track, cells int) {
	type cell struct {
		ns   int64
		kind trace.Kind
	}
	row := make([]cell, cells)
	span := v.to - v.from
	busy := int64(0)
	for i := range t.Events {
		e := &t.Events[i]
		busy += e.Ended - e.Started
		a := int((e.Started - v.from) * int64(cells) / span)
		b := int((max(e.Started, e.Ended-1) - v.from) * int64(cells) / span)
		for c := max(0, a); c <= b && c < cells; c++ {
			left, right := v.from+span*int64(c)/int64(cells), v.from+span*int64(c+1)/int64(cells)
			if ns := 1 + min(right, e.Ended) - max(left, e.Started); ns > row[c].ns {
				row[c] = cell{ns, e.Kind}
			}
		}
	}
	fmt.Fprintf(v.out, "%-*s ", nameWidth, short(t.Name, nameWidth))
	for _, c := range row {
		switch l, ok := looks[c.kind]; {
		case c.ns == 0:
			v.out.WriteByte(' ')
		case !ok:
			v.out.WriteByte('?')
		case v.colours:
			fmt.Fprintf(v.out, "\x1b[38;5;%dm█\x1b[0m", l.colour)
		default:
			v.out.WriteByte(l.letter)
		}
	}
	fmt.Fprintf(v.out, " %5.1f %%\n", 100*float64(busy)/float64(span))
}

func short(name string, n int) string {
	if len(name) <= n {
		return name
	}
	return name[:n-1] + "~"
}

func (v *lanesView) legend(tracks []trace.Track) {
	seen := map[trace.Kind]bool{}
	for _, t := range tracks {
		for i := range t.Events {
			seen[t.Events[i].Kind] = true
		}
	}
	fmt.Fprintf(v.out, "%*s", nameWidth, "")
	for k := trace.Kind(0); k.String() != "invalid"; k++ {
		l, ok := looks[k]
		switch {
		case !seen[k] || !ok:
		case v.colours:
			fmt.Fprintf(v.out, " \x1b[38;5;%dm█\x1b[0m %s", l.colour, l.name)
		default:
			fmt.Fprintf(v.out, " %c %s", l.letter, l.name)
		}
	}
	fmt.Fprintln(v.out)
}

// path tells where the time of the steps went.
func (v *lanesView) path(tracks []trace.Track, batches []uint64) {
	at := map[string]int64{}
	total := int64(0)
	for _, b := range batches {
		for _, p := range trace.Path(tracks, b) {
			name := tracks[p.Track].Name
			if p.Wait {
				name = "waiting"
			}
			at[name] += p.To - p.From
			total += p.To - p.From
		}
	}
	if total == 0 {
		return
	}
	names := make([]string, 0, len(at))
	for name := range at {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(at[b], at[a]), cmp.Compare(a, b)) })
	fmt.Fprintf(v.out, "\nWhere the time went, %s a step:\n", took(total/int64(len(batches))))
	for _, name := range names {
		fmt.Fprintf(v.out, "  %-*s %5.1f %%  %s\n", nameWidth, name, 100*float64(at[name])/float64(total), strings.Repeat("#", max(1, int(math.Round(40*float64(at[name])/float64(total))))))
	}
}

// waits names the longest gaps.
func (v *lanesView) waits(tracks []trace.Track) {
	gaps := slices.DeleteFunc(trace.Gaps(tracks, 1), func(g trace.Gap) bool { return g.Cause == trace.Idle })
	slices.SortStableFunc(gaps, func(a, b trace.Gap) int { return cmp.Compare(b.To-b.From, a.To-a.From) })
	if len(gaps) == 0 {
		return
	}
	fmt.Fprintln(v.out, "\nThe longest waits:")
	for _, g := range gaps[:min(len(gaps), waitsShown)] {
		fmt.Fprintf(v.out, "  %10s  %-*s %s\n", took(g.To-g.From), nameWidth, tracks[g.Track].Name, g.Why)
	}
}
