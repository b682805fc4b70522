package traces

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
	// widthDefault is the width of the picture without a terminal.
	widthDefault = 100
	// nameLeast and nameMost bound the width of the lanes' names.
	nameLeast, nameMost = 10, 14
	// waitsShown is the number of waits listed.
	waitsShown = 5
)

// look is how a kind of event is drawn: by a letter, or by a block in one of 256 colours.
type look struct {
	letter byte
	colour int
	name   string
}

var looks = map[trace.Kind]look{
	trace.Schedule: {'s', 103, "scheduler"}, trace.Embed: {'e', 73, "embedding"}, trace.Group: {'L', 68, "layers"}, trace.Attention: {'a', 68, "attention"},
	trace.Split: {'d', 98, "split"}, trace.Experts: {'X', 172, "experts"}, trace.Merge: {'m', 133, "merge"}, trace.Link: {'k', 71, "link"}, trace.Hop: {'>', 71, "hop"},
	trace.Head: {'h', 167, "head"}, trace.Sample: {'p', 143, "sampler"}, trace.Stream: {'t', 137, "text out"}, trace.Gateway: {'g', 245, "gateway"},
	trace.Device: {'D', 36, "step on the device"}, trace.DeviceEmbed: {'E', 73, "embedding there"},
	trace.DeviceGroup: {'G', 68, "layers there"}, trace.DeviceHead: {'H', 167, "head there"}, trace.DeviceExperts: {'Y', 172, "experts there"},
	trace.CopyWait: {'.', 240, "waiting for a copy"}, trace.CopyExperts: {'C', 61, "experts copied"}, trace.CopyKV: {'K', 31, "KV blocks copied"}, trace.SaveKV: {'S', 31, "KV blocks saved"},
	trace.PoolRows: {'r', 65, "rows"}, trace.PoolUp: {'u', 172, "gate and up"}, trace.PoolDown: {'w', 131, "down"}, trace.PoolSum: {'+', 133, "sums"}, trace.Failure: {'!', 196, "failure"}, trace.Control: {'c', 245, "control"},
}

// laneOrder is the order in which a batch passes the actors.
var laneOrder = []string{"schedule", "keeper", "embed", "link", "group", "split", "merge", "pool", "out", "in", "head", "sample", "stream", "gateway"}

// asides are the suffixes of the names of additional lanes of an actor or a device.
var asides = []string{trace.CopyLane(""), trace.KVLane(""), trace.PhaseLane("")}

// stretch summarises the last steps of a recording.
type stretch struct {
	Steps []uint64  `json:"steps"`
	NS    int64     `json:"ns"`    // from the first event to the end of the last
	Lanes []timeOf  `json:"lanes"` // work of each actor, in the order of a batch's path
	Path  []timeOf  `json:"path"`  // critical paths added up, largest part first; "waiting" belongs to no actor, "hops" is time between processes, "copies" is time a device waited for copies
	Waits []waitFor `json:"waits"` // the longest

	tracks   []trace.Track // events of these steps
	from, to int64
	names    int // width of the lanes' names
}

// timeOf is an actor's time, and its share of the whole.
type timeOf struct {
	Name  string  `json:"name"`
	NS    int64   `json:"ns"`
	Share float64 `json:"share"`
}

// waitFor is a time in which an actor waited.
type waitFor struct {
	Name string `json:"name"`
	NS   int64  `json:"ns"`
	Why  string `json:"why"`
}

// stretchOf summarises the last steps of tracks; it is empty if there are none.
func stretchOf(tracks []trace.Track, steps int) *stretch {
	s := &stretch{Steps: []uint64{}, Lanes: []timeOf{}, Path: []timeOf{}, Waits: []waitFor{}}
	batches, tracks, since := trace.Newest(tracks, steps, math.MaxInt)
	if len(batches) == 0 {
		return s
	}
	tracks = slices.DeleteFunc(tracks, func(t trace.Track) bool { return len(t.Events) == 0 })
	slices.SortStableFunc(tracks, func(a, b trace.Track) int {
		of, name := trace.Process(a.Name)
		other, its := trace.Process(b.Name)
		return cmp.Or(cmp.Compare(len(of), len(other)), cmp.Compare(of, other), cmp.Compare(laneRank(name), laneRank(its)), cmp.Compare(name, its))
	})
	s.Steps, s.tracks = batches, tracks
	s.from, s.to, s.names = math.MaxInt64, math.MinInt64, nameLeast
	for _, t := range tracks {
		s.names = max(s.names, min(len(t.Name), nameMost))
		for i := range t.Events {
			s.from, s.to = min(s.from, t.Events[i].Started), max(s.to, t.Events[i].Ended)
		}
	}
	s.to = max(s.to, s.from+1)
	s.NS = s.to - s.from
	for _, t := range tracks {
		busy := int64(0)
		for i := range t.Events {
			if e := &t.Events[i]; e.Kind != trace.CopyWait {
				busy += e.Ended - e.Started
			}
		}
		s.Lanes = append(s.Lanes, timeOf{t.Name, busy, float64(busy) / float64(s.NS)})
	}
	s.addPaths(since)
	s.addWaits()
	return s
}

// addPaths adds up where the time of the steps went. The previous step ended at since.
func (s *stretch) addPaths(since int64) {
	at := map[string]int64{}
	total := int64(0)
	for _, path := range trace.Paths(s.tracks, s.Steps, since) {
		for _, p := range path {
			name := s.tracks[p.Track].Name
			switch {
			case p.Copy:
				name = "copies"
			case p.Hop:
				name = "hops"
			case p.Wait:
				name = "waiting"
			}
			at[name] += p.To - p.From
			total += p.To - p.From
		}
	}
	for name, ns := range at {
		s.Path = append(s.Path, timeOf{name, ns, float64(ns) / float64(max(1, total))})
	}
	slices.SortFunc(s.Path, func(a, b timeOf) int { return cmp.Or(cmp.Compare(b.NS, a.NS), cmp.Compare(a.Name, b.Name)) })
}

// addWaits keeps the longest gaps.
func (s *stretch) addWaits() {
	gaps := slices.DeleteFunc(trace.Gaps(s.tracks, 1), func(g trace.Gap) bool { return g.Cause == trace.Idle })
	slices.SortStableFunc(gaps, func(a, b trace.Gap) int { return cmp.Compare(b.To-b.From, a.To-a.From) })
	for _, g := range gaps[:min(len(gaps), waitsShown)] {
		s.Waits = append(s.Waits, waitFor{s.tracks[g.Track].Name, g.To - g.From, g.Why})
	}
}

// lanesView draws a trace with characters.
type lanesView struct {
	*stretch
	out     *bufio.Writer
	colours bool
	width   int
}

// show draws the steps and prints a summary.
func (v *lanesView) show() {
	if len(v.Steps) == 0 {
		fmt.Fprintln(v.out, "The recording contains no step.")
		return
	}
	fmt.Fprintf(v.out, "%s: %s\n\n", stepsOf(v.Steps), took(v.NS))
	cells := max(20, v.width-v.names-10)
	v.axis(cells)
	for i := range v.tracks {
		v.lane(i, cells)
	}
	v.legend(v.tracks)
	v.path()
	v.waits()
}

func stepsOf(batches []uint64) string {
	if len(batches) == 1 {
		return fmt.Sprintf("Step %d", batches[0])
	}
	return fmt.Sprintf("Steps %d to %d", batches[0], batches[len(batches)-1])
}

func laneRank(name string) int {
	for _, aside := range asides {
		name = strings.TrimSuffix(name, aside)
	}
	kind := strings.TrimRight(name, "0123456789")
	if i := slices.Index(laneOrder, kind); i >= 0 {
		return i
	}
	return len(laneOrder)
}

func (v *lanesView) axis(cells int) {
	const every = 20
	row := []byte(strings.Repeat(" ", v.names+1+cells+12))
	for at := 0; at < cells; at += every {
		ns := v.NS * int64(at) / int64(cells)
		copy(row[v.names+1+at:], "|"+took(ns))
	}
	fmt.Fprintln(v.out, strings.TrimRight(string(row), " "))
}

// lane draws an actor. Each cell shows the kind of event that filled most of its time, if the actor
// worked at all.
func (v *lanesView) lane(n, cells int) {
	type cell struct {
		ns   int64
		kind trace.Kind
	}
	row := make([]cell, cells)
	t, span := &v.tracks[n], v.NS
	for i := range t.Events {
		e := &t.Events[i]
		a := int((e.Started - v.from) * int64(cells) / span)
		b := int((max(e.Started, e.Ended-1) - v.from) * int64(cells) / span)
		for c := max(0, a); c <= b && c < cells; c++ {
			left, right := v.from+span*int64(c)/int64(cells), v.from+span*int64(c+1)/int64(cells)
			if ns := 1 + min(right, e.Ended) - max(left, e.Started); ns > row[c].ns {
				row[c] = cell{ns, e.Kind}
			}
		}
	}
	fmt.Fprintf(v.out, "%-*s ", v.names, short(t.Name, v.names))
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
	fmt.Fprintf(v.out, " %5.1f %%\n", 100*v.Lanes[n].Share)
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
	fmt.Fprintf(v.out, "%*s", v.names, "")
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

// path prints where the time of the steps went.
func (v *lanesView) path() {
	if len(v.Path) == 0 {
		return
	}
	total := int64(0)
	for _, p := range v.Path {
		total += p.NS
	}
	fmt.Fprintf(v.out, "\nWhere the time went, %s per step:\n", took(total/int64(len(v.Steps))))
	for _, p := range v.Path {
		fmt.Fprintf(v.out, "  %-*s %5.1f %%  %s\n", v.names, p.Name, 100*p.Share, strings.Repeat("#", max(1, int(math.Round(40*p.Share)))))
	}
}

// waits prints the longest gaps.
func (v *lanesView) waits() {
	if len(v.Waits) == 0 {
		return
	}
	fmt.Fprintln(v.out, "\nThe longest waits:")
	for _, w := range v.Waits {
		fmt.Fprintf(v.out, "  %10s  %-*s %s\n", took(w.NS), v.names, w.Name, w.Why)
	}
}
