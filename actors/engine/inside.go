package engine

import "time"

// Topology is a running pipeline as a picture: who there is, and who sends to whom.
type Topology struct {
	Nodes []Node
	Edges []Edge
}

// NodeKind says what an actor does.
type NodeKind string

// The kinds of actors.
const (
	NodeGateway  NodeKind = "gateway"
	NodeSchedule NodeKind = "schedule"
	NodeEmbed    NodeKind = "embed"
	NodeGroup    NodeKind = "group"
	NodeSplit    NodeKind = "split"
	NodePool     NodeKind = "pool"
	NodeMerge    NodeKind = "merge"
	NodeLink     NodeKind = "link"
	NodeHop      NodeKind = "hop" // takes batches that come from another process
	NodeHead     NodeKind = "head"
	NodeSample   NodeKind = "sample"
	NodeStream   NodeKind = "stream"
	NodeDevice   NodeKind = "device" // no actor: the steps of a device that computes apart from the host, by its own clock
	NodeCopies   NodeKind = "copies" // no actor: copies of experts to a rank
)

// Node is an actor.
type Node struct {
	Name        string // as in Stats.ActorQueue and in the trace
	Kind        NodeKind
	Index       int    // of its kind
	Device      string // where it computes; "" where it computes nothing, or as a device's lane has no whole steps
	First, Last int    // layers [First, Last) of a group, and of what serves it
	Rank        int
	MemoryNode  int    // of a pool; -1: none in particular
	Machine     string // the name of the worker that it is on; "" on this process
}

// Edge is a way that messages take.
type Edge struct{ From, To string }

// Running is an open request, as it is now, or one that has ended lately, as it was then.
type Running struct {
	ID                uint64 // in the trace
	Name              string
	Owner             string
	Phase             Phase
	Prompt, Cached    int // tokens, and those of them that the KV cache had
	Generated, Most   int // tokens of the answer, and the most there may be
	Priority          int
	Since             time.Duration // its arrival, until now or its end
	Waited            time.Duration // until its first batch, or until now
	ToFirst, PerToken time.Duration // until its first token, and between two; 0: not yet
}

// Origin says where a request came from, as the server that took it reported.
type Origin struct {
	Name   string
	Caller Caller
}

// Phase is the phase of a request.
type Phase string

// The phases of a request.
const (
	Waiting    Phase = "waiting"
	Prefilling Phase = "prefill"
	Decoding   Phase = "decode"
	Ended      Phase = "ended"
)

// Heat counts how often routers chose each expert since the start, in a sample of batches.
type Heat struct {
	Experts, TopK int
	Layers        []int      // the model's layers with experts
	Tokens        []uint64   // [layers] rows counted
	Counts        [][]uint64 // [layers][experts] choices counted
	Resident      [][]bool   // [layers][experts] whether the expert is on the rank; nil: experts are not placed apart
}
