package webui

import (
	"reflect"

	"krater/actors/engine"
)

// state is the page's data at one moment. A delta has only the changed parts.
type state struct {
	Now      int64              `json:"now,omitempty"`   // the trace's clock, ns
	Nodes    map[string]load    `json:"nodes,omitempty"` // by actor
	Flow     *flow              `json:"flow,omitempty"`
	Latency  map[string]latency `json:"latency,omitempty"`
	Experts  *experts           `json:"experts,omitempty"`
	Heat     *heat              `json:"heat,omitempty"`
	Requests *[]request         `json:"requests,omitempty"`
	Verdict  *verdict           `json:"verdict,omitempty"`
	Where    *shares            `json:"where,omitempty"`
	Point    *point             `json:"point,omitempty"`   // the newest of the charts
	Loading  *loadState         `json:"loading,omitempty"` // of a model that is not there yet
}

// load describes an actor's load: waiting messages, messages per second, the share of time it
// works, the mean wait in seconds, bytes per second.
type load [5]float64

// The fields of a load.
const (
	loadQueue = iota
	loadRate
	loadBusy
	loadWait
	loadBytes
)

// flow describes the whole pipeline.
type flow struct {
	Tokens  float64 `json:"tokens"` // generated, a second
	Prompt  float64 `json:"prompt"` // tokens of prompts, a second
	Steps   float64 `json:"steps"`  // a second
	Rows    float64 `json:"rows"`   // of a step, on average
	Running int     `json:"running"`
	Waiting int     `json:"waiting"`
	KV      [3]int  `json:"kv"`      // blocks in use, kept for prefixes, all
	HostKV  [2]int  `json:"host_kv"` // blocks in host memory: in use, all
	Prefix  [2]int  `json:"prefix"`  // tokens of prompts looked for in the cache, and found, since the start
	Totals  [3]int  `json:"totals"`  // since the start: prompt tokens, generated tokens, steps
	Preempt int     `json:"preempted"`
}

// latency covers the requests of the last half minute.
type latency struct {
	P50    float64   `json:"p50"`
	P95    float64   `json:"p95"`
	Counts []uint64  `json:"counts"` // by bucket; the last is above all bounds
	Bounds []float64 `json:"bounds"`
}

// experts is where experts were computed, and what ranks found.
type experts struct {
	Computed map[string]float64 `json:"computed"` // a second, by device
	Caches   []expertCache      `json:"caches"`
}

type expertCache struct {
	Strategy string  `json:"strategy"`
	Rank     string  `json:"rank"`
	Hits     float64 `json:"hits"`   // a second
	Misses   float64 `json:"misses"` // copied for a layer
	Host     float64 `json:"host"`   // left to the host
	Moves    float64 `json:"moves"`  // between steps
	Bytes    float64 `json:"bytes"`
	Rate     float64 `json:"rate"` // of hits, since the start; -1: nothing was asked for
	Link     float64 `json:"link"` // of the experts that were missing, those copied for their layer, since the start; -1: none was missing
}

// heat says how hot experts are.
type heat struct {
	Layers  []int  `json:"layers"`
	Experts int    `json:"experts"`
	TopK    int    `json:"top_k"`
	Rows    uint64 `json:"rows"`  // of a layer, counted since the start
	Least   uint64 `json:"least"` // rows before which nothing is said of a layer's experts
	// Levels is [layers][experts] as base64: 32 is the share of an even router, 255 eight times as
	// much or more.
	Levels   []byte `json:"levels"`
	Resident []byte `json:"resident,omitempty"` // [layers][experts] 1: on the rank
	Hot      []hot  `json:"hot"`
}

// hot is an expert with the share of its layer's rows that chose it, at most 1.
type hot struct {
	Layer  int     `json:"layer"`
	Expert int     `json:"expert"`
	Share  float64 `json:"share"`
}

// request is an open one as a viewer sees it.
type request struct {
	ID        uint64       `json:"id"`
	Name      string       `json:"name"`
	Phase     engine.Phase `json:"phase"`
	Prompt    int          `json:"prompt"`
	Cached    int          `json:"cached"`
	Generated int          `json:"generated"`
	Most      int          `json:"most"`
	Priority  int          `json:"priority"`
	Age       float64      `json:"age"` // seconds
	Waited    float64      `json:"waited"`
	ToFirst   float64      `json:"to_first"`
	PerToken  float64      `json:"per_token"`
	Mine      bool         `json:"mine"`

	owner string
}

// verdict says in words what limits the pipeline.
type verdict struct {
	Text string `json:"text"`
	Node string `json:"node"` // that it is about, or ""
}

// since returns what has changed from before to s.
func (s *state) since(before *state) *state {
	if before == nil || before.Flow == nil { // nothing, or a model that was loading
		return s
	}
	d := *s
	d.Nodes = map[string]load{}
	for name, l := range s.Nodes {
		if before.Nodes[name] != l {
			d.Nodes[name] = l
		}
	}
	if *s.Flow == *before.Flow {
		d.Flow = nil
	}
	if reflect.DeepEqual(s.Latency, before.Latency) {
		d.Latency = nil
	}
	if reflect.DeepEqual(s.Experts, before.Experts) {
		d.Experts = nil
	}
	if s.Heat == before.Heat { // replaced only when it changes
		d.Heat = nil
	}
	if s.Verdict != nil && before.Verdict != nil && *s.Verdict == *before.Verdict {
		d.Verdict = nil
	}
	if s.Where == before.Where { // replaced only when it changes
		d.Where = nil
	}
	if s.Point != nil && before.Point != nil && *s.Point == *before.Point {
		d.Point = nil
	}
	if s.Requests == before.Requests || reflect.DeepEqual(s.Requests, before.Requests) {
		d.Requests = nil
	}
	return &d
}

// as returns the state for one viewer, without the names of what others sent.
func (s *state) as(owner string) *state {
	if s.Requests == nil {
		return s
	}
	own := *s
	list := make([]request, len(*s.Requests))
	for i, r := range *s.Requests {
		if r.Mine = r.owner == owner; !r.Mine {
			r.Name = ""
		}
		list[i] = r
	}
	own.Requests = &list
	return &own
}
