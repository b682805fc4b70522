package actors

import (
	"cmp"
	"slices"

	"krater/actors/placement"
	"krater/kernels/device"
	"krater/scheduler"
	"krater/scheduler/dispatch"
)

// Policy holds the limits of the schedule that the caller chooses. The rest of the scheduler's
// configuration follows from the ranks, the blueprint and the placements.
type Policy struct {
	PrefillChunk int  // prefill rows of one sequence in a batch
	PrefillShare int  // prefill rows of all sequences in a batch while a stream is in decode
	MaxQueue     int  // waiting requests
	Aging        int  // scheduler.Config.Aging
	Calm         int  // scheduler.Config.Calm
	PassRows     int  // scheduler.Config.PassRows
	PassShare    int  // scheduler.Config.PassShare
	MaxRetries   int  // largest number of repetitions of a request's lost step; 0: linkRetries between several ranks or with Options.Replay, else none
	NoReuse      bool // scheduler.Config.NoReuse
	// ReuseAnswers lets prompts that continue an answer use the answer's rows in the KV cache, even if
	// computing the same tokens as a prompt would give other bits.
	ReuseAnswers bool
	// Invariant must match the GPU's option. Results then depend only on whether a row is
	// prefill or decode, and recomputation preserves that.
	Invariant bool
}

// loadRate is a low estimate of the number of tokens of KV blocks that are loaded from host memory, and
// as many saved, in the time that a GPU takes for a row of a prompt: a copy takes some 3 us for a block
// of 16 tokens in each of 27 layers, and a row 40 us (DeepSeek-V2-Lite on an H100). Larger models take
// longer for a row.
const loadRate = 4

// linkRetries is the default of Policy.MaxRetries if there are links that may fail.
const linkRetries = 2

// schedulerConfig returns the configuration of the scheduler, made here and nowhere else.
func schedulerConfig(ranks []*rank, opt *Options) scheduler.Config {
	policy, lim, micro := &opt.Policy, ranks[0].Limits, opt.Blueprint.MicroBatches
	c := scheduler.Config{
		PrefillChunk: policy.PrefillChunk, PrefillShare: policy.PrefillShare, MaxQueue: policy.MaxQueue,
		Aging: policy.Aging, Calm: policy.Calm, PassRows: policy.PassRows, PassMixed: policy.PassRows / 3, PassShare: policy.PassShare, MaxRetries: policy.MaxRetries, NoReuse: policy.NoReuse,
		Blocks: lim.Blocks, BlockTokens: lim.BlockTokens, MaxSeqs: lim.Seqs, MaxBatchTokens: lim.Tokens, LogitRows: lim.LogitRows,
		RAMBlocks: lim.HostBlocks, Snapshots: lim.Snapshots, WindowBlocks: lim.WindowBlocks, LoadRate: loadRate, MicroBatches: micro, PrefillBatches: micro,
	}
	if place := ranks[0].place; place != nil && place.Blocks() > 0 {
		c.Open, c.Blocks = place.Blocks(), place.Blocks()
		if exchanging(ranks, opt) != nil {
			c.Blocks = place.BlocksFor(lim.Blocks)
		}
	}
	if lim.WindowBlocks > 0 {
		c.Window = ranks[0].Config.Window()
	}
	gpu := false
	var devices []device.Device
	for _, r := range ranks {
		devices, gpu = append(devices, r.Device), gpu || Ahead(r.Device)
	}
	c.Ahead = opt.Remote == nil && Ahead(devices...) && (opt.Help == nil || micro == 1)
	gpu = gpu || opt.Remote != nil && opt.Remote.Accelerators
	// A GPU has room for one generated row of a sequence at a time, and promises bits only
	// where it is asked to: there whatever the attention.
	c.Classes = ranks[0].Config.TwoForms() && !gpu
	c.ReuseAnswers = c.Classes && policy.ReuseAnswers
	if policy.Invariant && gpu {
		c.Classes, c.RecomputeSingly = true, true
	}
	if len(ranks) > 1 || opt.Remote != nil || opt.Replay || opt.Help != nil {
		c.MaxRetries = cmp.Or(c.MaxRetries, linkRetries)
	}
	if len(ranks) == 1 && opt.Help == nil && placements(ranks, func(p *placement.Placement) bool { return !p.Leaves(dispatch.Prefill) }) {
		// The device alone computes prompts: what it copies for one batch of them it would
		// copy for each.
		c.PrefillBatches = 1
	}
	c.Follow = follows(ranks, opt, &c)
	return c
}

// follows reports whether the chunks of a prompt may follow each other through the ranks, or through a rank and its helper. A batch must then
// pass every layer after those before it, and nothing may be kept of a sequence but rows in blocks. Steps of a GPU that waits for the host in
// the middle are not submitted in order; those of a rank with a helper are, layer by layer.
func follows(ranks []*rank, opt *Options, c *scheduler.Config) bool {
	several := len(ranks) > 1 || opt.Help != nil
	if opt.Remote != nil {
		several = !opt.Remote.Accelerators
	}
	whole := func(r *rank) bool {
		return r.Limits.Window == r.Limits.Tokens && (r.accel == nil || r.place == nil || opt.Help != nil)
	}
	return several && c.MicroBatches > 1 && c.Snapshots == 0 && c.WindowBlocks == 0 && c.PassRows == 0 &&
		!slices.ContainsFunc(ranks, func(r *rank) bool { return !whole(r) })
}
