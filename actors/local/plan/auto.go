package plan

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"text/tabwriter"

	"krater/actors/local/config"
	"krater/actors/local/predict"
	"krater/scheduler/planner"
	"krater/stages/load"
)

// weighing is the layers of a model and the ranks that take them, as planner.Cut takes both.
type weighing struct {
	layers []int64 // bytes with all experts, and with the smallest KV cache
	stages []planner.Stage
}

// weigh measures layers and ranks for a division. A generated token reads all of a layer but its routed experts, and of these those that
// are chosen.
func (o *Plan) weigh(places []config.Place, first, layers int) (w weighing, err error) {
	f, small := &o.Options, o.Load
	small.Blocks = min(small.Blocks, (leastContext+f.BlockTokens-1)/f.BlockTokens)
	small.WindowBlocks = min(small.WindowBlocks, small.Blocks)
	widest := -1 // the place whose formats count
	for i, p := range places {
		if widest < 0 || p.Kind == config.CUDA {
			widest = i
		}
	}
	g := f.Of(widest, places[widest])
	sizes, err := SizesOf(o.cfg, first, layers, load.Use{States: o.states(), Streams: o.Pools + 2, Threads: f.ThreadCount()}, func(cut load.Cut) (load.Options, error) {
		return g.RankLoad(o.cfg, small, cut, o.Case, 0)
	})
	if err != nil {
		return w, err
	}
	for _, l := range sizes.Layers {
		w.layers = append(w.layers, planner.Add(l.Weights, planner.Add(l.Cache, l.States)))
	}
	for i, p := range places {
		s := planner.Stage{Room: math.MaxInt64, Rate: o.rate(i, p) / sizes.Active}
		switch memory := int64(0); {
		case p.Kind == config.CUDA && i < len(o.Case.Ranks):
			memory = o.Case.Ranks[i].Memory
			s.Room = max(1, int64(config.GPUShare*float64(memory))-sizes.Fixed)
		case p.Kind == config.HostSim && f.VRAM.Of(i) > 0:
			s.Room = max(1, int64(planner.RefuseShare*float64(f.VRAM.Of(i)))-sizes.Fixed)
		}
		if i == len(places)-1 && s.Rate > 0 && (o.Part == nil || o.Part.Ends == load.OwnEnds) {
			s.Before = float64(sizes.Head) / o.rate(i, p)
		}
		w.stages = append(w.stages, s)
	}
	return w, nil
}

// rate returns how many bytes of weights a second the device of a rank reads for a few rows.
func (o *Plan) rate(rank int, p config.Place) float64 {
	c := o.Case
	if rank < len(c.Ranks) {
		c.Rank = c.Ranks[rank]
	}
	return predict.ReadRate(&o.Options, c, o.Machine, p.Kind == config.CUDA)
}

// cutByTime divides the layers so that the slowest rank takes as little time as possible, with all experts on the ranks' devices. Where they do
// not fit, the host computes the rest, and a rank is the faster the more it holds.
func (o *Plan) cutByTime(w weighing) []int {
	if sizes, err := planner.Cut(w.layers, w.stages); err == nil {
		return sizes
	}
	total := int64(0)
	for _, n := range w.layers {
		total = planner.Add(total, n)
	}
	host := o.rate(len(w.stages), config.Place{Kind: config.CPU})
	stages := make([]planner.Stage, len(w.stages))
	for i, s := range w.stages {
		held := min(1, float64(s.Room)/float64(max(1, total)))
		stages[i] = planner.Stage{Room: math.MaxInt64, Rate: 1 / (held/cmp.Or(s.Rate, host) + (1-held)/host), Before: s.Before}
	}
	sizes, err := planner.Cut(w.layers, stages)
	if err != nil {
		return load.Even(len(w.layers), len(w.stages))
	}
	return sizes
}

// noteTimes notes the estimated time of a generated token on each rank.
func (o *Plan) noteTimes(w weighing, first int) {
	all := 0.0
	for i, r := range o.Ranks {
		s := w.stages[i]
		r.Seconds = s.Before
		from, to := r.Load.Range(o.cfg)
		for _, n := range w.layers[from-first : to-first] {
			r.Seconds += float64(n) / s.Rate
		}
		all += r.Seconds
	}
	for _, r := range o.Ranks {
		r.TimeShare = r.Seconds / max(all, math.SmallestNonzeroFloat64)
	}
}

// RankReport is a rank of a plan.
type RankReport struct {
	Device    string  `json:"device"`
	First     int     `json:"first_layer"`
	Layers    int     `json:"layers"`
	Bytes     int64   `json:"bytes"`             // of its device
	TimeShare float64 `json:"time_share"`        // of a generated token's time
	Experts   string  `json:"experts,omitempty"` // strategies, where not all are on the device
	Helper    bool    `json:"helper,omitempty"`  // it computes experts of the only rank, and no layers
}

// RankReport lists the ranks.
func (o *Plan) RankReport() (list []RankReport) {
	for _, r := range o.Each() {
		first, last := r.Load.Range(o.cfg)
		x := RankReport{Device: r.place.String(), First: first, Layers: last - first, Bytes: r.Promised, TimeShare: r.TimeShare}
		if r.Beside() {
			x.Experts = r.Experts.String()
		}
		list = append(list, x)
	}
	if o.Helper != nil {
		list[0].TimeShare = 1
		list = append(list, RankReport{Device: o.Helper.Place.String(), Bytes: o.Helper.Bytes, Experts: o.Helper.String(), Helper: true})
	}
	return list
}

// RankTable is RankReport for people.
func (o *Plan) RankTable() string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "rank\tdevice\tlayers\tmemory\ttime\texperts")
	for i, r := range o.RankReport() {
		if r.Helper {
			fmt.Fprintf(w, "helper\t%s\t\t%s\t\t%s\n", r.Device, planner.Size(r.Bytes), r.Experts)
			continue
		}
		fmt.Fprintf(w, "%d\t%s\t%d (%d to %d)\t%s\t%.0f %%\t%s\n", i, r.Device, r.Layers, r.First, r.First+r.Layers-1, planner.Size(r.Bytes), 100*r.TimeShare, r.Experts)
	}
	w.Flush()
	if o.Unhelped != "" {
		fmt.Fprintf(&out, "--expert-device has no part: %s\n", o.Unhelped)
	}
	fmt.Fprintf(&out, "KV cache: %d tokens on every rank", o.Load.Blocks*o.Load.BlockTokens)
	if o.Limits != "" {
		fmt.Fprintf(&out, ", limited by %s", o.Limits)
	}
	return out.String()
}
