package main

import (
	"errors"
	"fmt"

	"krater/bench/cards"
	"krater/cmd/krater/console"
	"krater/kernels/device"
	"krater/scheduler/planner/rates"
)

// Card implements meter by kernels and copies of a few seconds. A card whose memory others
// have is not measured.
func (kernelMeter) Card(index int, tell console.Telling) (rates.Card, error) {
	p, err := cards.Measure(cards.Options{Index: index, Seed: 1, Step: func(done, all int) { tell("the GPU", float64(done), float64(all)) }})
	if errors.Is(err, cards.ErrNoCard) || errors.Is(err, cards.ErrEmulated) || errors.Is(err, device.ErrOutOfMemory) {
		return rates.Card{}, fmt.Errorf("%w: %w", errUnmeasured, err)
	}
	if err != nil {
		return rates.Card{}, err
	}
	return cardOf(p)
}

// cardOf turns what a card did into rates. What is not measured (how many launches a layer
// has, the maker's rates of memory and link, rows by flags in mapped memory) is assumed by
// Complete.
func cardOf(p *cards.Points) (rates.Card, error) {
	if p.Emulated {
		return rates.Card{}, fmt.Errorf("%w: %w", errUnmeasured, cards.ErrEmulated)
	}
	c := rates.Card{
		Name: p.Card, MemoryGiB: float64(p.Memory) / (1 << 30), ReadGBps: p.ReadGBps, TFLOPS: p.TFLOPs,
		LaunchUS: p.LaunchUS, NodeUS: p.NodeUS, SyncUS: p.RoundUS,
		Dense: curveOf(p, p.Dense), Experts: curveOf(p, p.Experts), Attention: curveOf(p, p.Attention),
		KVShare: shareOf(p, p.KV),
	}
	for _, s := range p.Few {
		c.WeightShare += shareOf(p, s) / float64(len(p.Few))
	}
	small, large := p.Copies[0], p.Copies[1]
	c.CopyGBps, c.CopyUS = lineThrough(small, large)
	// Beside computing a copy takes as long besides as alone, and is no faster.
	c.BusyGBps = c.CopyGBps
	if us := p.Busy.US - c.CopyUS; us > 0 {
		c.BusyGBps = min(c.CopyGBps, p.Busy.Bytes/us/1e3)
	}
	c.Sources = map[string]rates.Source{}
	for _, f := range []string{"memory_gib", "read_gbps", "tflops", "weight_share", "kv_share", "dense.peak", "dense.half_rows", "experts.peak",
		"experts.half_rows", "attention.peak", "attention.half_rows", "launch_us", "node_us", "copy_gbps", "busy_copy_gbps", "copy_us", "sync_us"} {
		c.Sources[f] = rates.Measured
	}
	whole, err := c.Complete()
	if err == nil {
		err = (&rates.Rates{Card: whole}).Check()
	}
	if err != nil {
		return rates.Card{}, fmt.Errorf("what was measured is no card: %w", err)
	}
	return whole, nil
}

// workUS is the time of the work itself: forecasts count launches by themselves. Launches that
// take most of it hide behind each other, so a part is always left.
func workUS(p *cards.Points, s cards.Speed) float64 {
	return max(s.US-float64(s.Launches)*p.NodeUS, s.US/4)
}

// shareOf is the part of what is read that work bound by memory reaches.
func shareOf(p *cards.Points, s cards.Speed) float64 {
	return min(1, s.Bytes/workUS(p, s)/1e3/p.ReadGBps)
}

// curveOf is the curve through two speeds.
func curveOf(p *cards.Points, s [2]cards.Speed) rates.Curve {
	rate := func(s cards.Speed) float64 { return s.Flops / workUS(p, s) / 1e3 } // GOP/s
	return curveThrough(s[0].Rows, rate(s[0]), s[1].Rows, rate(s[1]))
}

// lineThrough is the rate and the constant part of copies of two sizes; noise that would
// make either negative counts as none.
func lineThrough(small, large cards.Piece) (gbps, us float64) {
	per := large.US / large.Bytes
	if slope := (large.US - small.US) / (large.Bytes - small.Bytes); slope > 0 && slope < per {
		per = slope
	}
	return 1 / per / 1e3, max(0, large.US-large.Bytes*per)
}
