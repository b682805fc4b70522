package actors

import (
	"errors"

	"krater/actors/engine"
	"krater/actors/hop"
	"krater/actors/trace"
	"krater/stages/load"
)

// SegmentHops are the connections of a segment.
type SegmentHops struct {
	In   hop.Conn // from the member before
	Out  hop.Conn // to the next one, or back to the leader
	Side hop.Conn // to the leader, for batches that fail and are abandoned
}

// Segment is the pipeline of a worker, which computes consecutive layers of a model for a leader (Options.Remote). It has
// no actors that schedule, embed, choose tokens or write answers.
type Segment struct{ p *Pipeline }

// StartSegment starts a segment over ranks without embedding and head. Limits and Blueprint.MicroBatches must be the leader's.
// It uses only the options about layers, experts and recording. The segment owns the connections, but not the ranks' parts.
func StartSegment(ranks []load.Rank, opt Options, hops SegmentHops) (*Segment, error) {
	if hops.In == nil || hops.Out == nil || hops.Side == nil {
		return nil, errors.New("a segment without a connection in, out, or to its leader")
	}
	opt.Remote, opt.Before, opt.Replay, opt.segment = nil, nil, false, &hops
	p, err := Start(ranks, opt)
	if err != nil {
		return nil, err
	}
	return &Segment{p}, nil
}

// Failed returns a channel that is closed when the segment has lost a connection or a rank.
func (s *Segment) Failed() <-chan struct{} { return s.p.Failed() }

// Err returns the failure, or nil.
func (s *Segment) Err() error { return s.p.Err() }

// Trace returns the record of what the segment's actors did, on this machine's clock. Batches have the leader's numbers.
func (s *Segment) Trace() *trace.Registry { return s.p.Trace() }

// Topology draws the segment's actors.
func (s *Segment) Topology() engine.Topology { return s.p.Topology() }

// Hop returns the cost of the hop to the segment so far. Its time is between the clocks of two machines: from sending, by
// the clock of the member before, until the batch was taken, by this one's.
func (s *Segment) Hop() engine.Link { return s.p.peers.in.cost() }

// Close ends the segment and its connections.
func (s *Segment) Close() error {
	s.p.closing.Do(func() { s.p.closeError = s.p.halt() })
	return s.p.closeError
}
