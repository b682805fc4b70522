// Package trace keeps a ring of recent events for each actor. Events have a fixed size. The actor
// itself writes them without a lock, a wait or an allocation, and they can be read at any time
// without stopping it. The live page, the Perfetto file and the totals for metrics come from the
// rings.
package trace

import "time"

// Kind says what an actor did with a message.
type Kind uint8

const (
	Gateway       Kind = iota // render, tokenize, submit
	Schedule                  // make a batch or take one back
	Embed                     // token ids to hidden rows
	Group                     // all layers of a layer group
	Attention                 // the attention half of a layer
	Split                     // route a layer's rows and send the parts out
	Experts                   // one pool's part of a layer
	Merge                     // add the parts of a layer
	Link                      // carry hidden rows to another group
	Hop                       // take a batch from another process: Enqueued when that sent it
	Head                      // norm and logits
	Sample                    // choose tokens
	Stream                    // text out to a client
	Request                   // a whole request: Enqueued accepted, Started in its first batch, Ended
	Failure                   // a message was lost
	Control                   // anything else
	Prefill                   // a request from its first batch to its first token
	Device                    // a step as a device ran it, in one piece, by its own clock
	DeviceEmbed               // the embedding of such a step
	DeviceGroup               // a layer group of it
	DeviceHead                // its norm, logits and choice
	DeviceExperts             // routed experts of a layer on a device, where they have a stream of their own
	CopyExperts               // copies of a layer's experts to a device
	CopyKV                    // copies of KV blocks back to a device
	SaveKV                    // copies of KV blocks to host memory
	CopyWait                  // a device waited for a copy; Layer -1: of KV blocks
	PoolRows                  // of a pool's part of a layer: rows are brought to where they are multiplied
	PoolUp                    // gate and up, with the activation
	PoolDown                  // down
	PoolSum                   // sums, and the answer
	kinds
)

var kindNames = [kinds]string{
	"gateway", "schedule", "embed", "group", "attention", "split", "experts", "merge",
	"link", "hop", "head", "sample", "stream", "request", "failure", "control",
	"prefill", "device", "device embed", "device group", "device head", "device experts",
	"copy experts", "copy kv", "save kv", "copy wait", "rows", "gate and up", "down", "sums",
}

func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return "invalid"
}

// KindOf finds a kind by its name.
func KindOf(name string) (Kind, bool) {
	for k, n := range kindNames {
		if n == name {
			return Kind(k), true
		}
	}
	return 0, false
}

// Event is one message handled, 72 bytes. Times come from Now.
type Event struct {
	Batch    uint64 // 0: about no batch
	Request  uint64 // the scheduler's id, for events about one request; else 0
	Enqueued int64  // ns; 0: unknown. Of a Hop, on the clock of the process that sent it
	Started  int64  // ns
	Ended    int64  // ns
	Bytes    uint64 // copied, moved over a link or read as weights of experts; 0: not counted
	Epoch    uint32
	Rows     uint32
	Layer    int16  // -1: no single layer
	Parts    uint16 // parts a Split sent or a Merge added; else 0
	Lane     uint8  // of the batch: which micro-batch it is a step of
	Kind     Kind
	Device   uint8 // where it was computed: an index of Registry.Devices
	// Others is how many similar messages, of batches that are not in the sample, this one stands for
	// besides itself.
	Others uint8
	// Of a host call's experts, in ns from Started: until the rows were there to be multiplied,
	// and until they had been; what is left until Ended is sums and the answer. 0: not known.
	Gathered, Computed uint32
}

// Totals sums up all events of a ring since its start, overwritten ones too, each together with the
// others that it stands for. Events about whole requests are not included, because they are not work
// of the actor that records them.
type Totals struct {
	Count uint64
	Wait  time.Duration // in the mailbox, of events that know Enqueued
	Run   time.Duration
	Bytes uint64
}

func (t *Totals) add(e *Event) {
	if e.Kind == Request || e.Kind == Prefill || e.Kind == CopyWait {
		return
	}
	n := 1 + time.Duration(e.Others)
	t.Count += uint64(n)
	t.Bytes += uint64(n) * e.Bytes
	if e.Enqueued != 0 {
		t.Wait += n * time.Duration(e.Started-e.Enqueued)
	}
	t.Run += n * time.Duration(e.Ended-e.Started)
}

var processStart = time.Now()

// Now returns the monotonic time since the process began, in ns.
func Now() int64 { return int64(time.Since(processStart)) }

// At returns the value of Now at time t, in nanoseconds.
func At(t time.Time) int64 { return int64(t.Sub(processStart)) }

// Wall returns the time of day at which Now returned ns.
func Wall(ns int64) time.Time { return processStart.Add(time.Duration(ns)) }
