// Package cluster is the membership of a cluster: the processes that serve one model together. A leader
// gathers workers, gives each some layers, connects them in a chain, and begins anew when one is lost.
// It knows neither models nor networks: they are its interfaces.
package cluster

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"krater/actors/engine"
	"krater/actors/hop"
	"krater/actors/trace"
)

// Token says which hop a connection between two members is for. It is random and used once.
type Token [16]byte

// NewToken makes one.
func NewToken() (t Token) {
	rand.Read(t[:])
	return t
}

// MarshalText implements encoding.TextMarshaler.
func (t Token) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, t[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *Token) UnmarshalText(text []byte) error {
	if len(text) != 2*len(t) {
		return fmt.Errorf("a token of %d characters", len(text))
	}
	_, err := hex.Decode(t[:], text)
	return err
}

// Model says which model a worker is to open, and how.
type Model struct {
	Name        string          `json:"name"`
	Path        string          `json:"path"`        // where the leader has it; a worker may have another
	Fingerprint string          `json:"fingerprint"` // of its files; a worker's must be the same
	Options     json.RawMessage `json:"options"`     // of the engine, those that all members share
}

// Offer says how much a worker can take.
type Offer struct {
	Worker string  `json:"worker"` // its name in logs and errors
	Index  int     `json:"index"`  // its place in the chain, where it has one; else 0
	Device string  `json:"device"`
	Memory int64   `json:"memory"` // bytes for weights, KV cache and all else
	Rate   float64 `json:"rate"`   // bytes a second that its device reads; 0: unknown
}

// Part is the layers [First, Last) of the model, for one worker.
type Part struct {
	First int             `json:"first"`
	Last  int             `json:"last"`
	Sizes json.RawMessage `json:"sizes"` // of the load, which all members share; the worker checks that they fit
}

// Hops are the connections of a member for batches.
type Hops struct {
	In   hop.Conn // from the member before; of the leader: from the last worker
	Out  hop.Conn // to the next one; of the last worker: to the leader
	Side hop.Conn // of a worker: to the leader, for batches that are given up
	// Sides are the leader's ends of them, by worker.
	Sides []hop.Conn
	Peers []Peer // of the leader: the workers
}

// Peer is a worker as the leader's pipeline shows it. Its functions are safe for concurrent use.
type Peer struct {
	Name     string
	Topology engine.Topology
	// Ask asks for the events of its actors from those numbers on, as times of the leader's clock, and with detail for a
	// record of every batch during the next seconds.
	Ask   func(from map[string]uint64, detail bool) (*trace.Told, error)
	Ahead func() time.Duration // of its clock; 0 as long as it is not known
	Hop   func() engine.Link   // what the hop to it has cost so far
}

// Close closes all of them.
func (h *Hops) Close() {
	if h == nil {
		return
	}
	for _, c := range append([]hop.Conn{h.In, h.Out, h.Side}, h.Sides...) {
		if c != nil {
			c.Close()
		}
	}
}

// The messages. Generation counts the leader's attempts to serve; an answer to an older one is dropped.
type (
	// hello is a worker's first message.
	hello struct {
		Version string `json:"version"` // of the program, the leader's and the worker's alike
		Worker  string `json:"worker"`
		Address string `json:"address"` // where the member before it connects to
	}
	// open asks a worker for its files. Beat is the token of its heartbeats.
	open struct {
		Model Model `json:"model"`
		Beat  Token `json:"beat"`
	}
	opened struct {
		Fingerprint string `json:"fingerprint"`
		Offer       Offer  `json:"offer"`
	}
	assign struct {
		Generation uint64 `json:"generation"`
		Part       Part   `json:"part"`
	}
	loaded struct {
		Generation uint64 `json:"generation"`
		Error      string `json:"error,omitempty"`
	}
	// connect tells a worker its hops: it expects In, and connects to the others.
	connect struct {
		Generation uint64 `json:"generation"`
		In         Token  `json:"in"`
		Next       place  `json:"next"`
		Side       Token  `json:"side"`
		FrameBytes int    `json:"frame_bytes"`
	}
	connected struct {
		Generation uint64          `json:"generation"`
		Error      string          `json:"error,omitempty"`
		Topology   engine.Topology `json:"topology"`
	}
	// look asks a worker what its hop has cost, and with Events what its actors have recorded: from those numbers on, by
	// actor. Detail asks for a record of every batch for a while.
	look struct {
		Number uint64            `json:"number"`
		Events bool              `json:"events"`
		From   map[string]uint64 `json:"from,omitempty"`
		Detail bool              `json:"detail"`
	}
	seen struct {
		Number uint64      `json:"number"`
		Hop    engine.Link `json:"hop"` // its time is between two clocks
		Told   *trace.Told `json:"told,omitempty"`
	}
	// reset ends the batches of a worker. It keeps its layers.
	reset struct {
		Generation uint64 `json:"generation"`
	}
	// bye refuses a worker, or tells it that the leader ends.
	bye struct {
		Why   string `json:"why"`
		Final bool   `json:"final"` // it is useless to join again
	}
)

// place is where a hop leads.
type place struct {
	Leader  bool   `json:"leader"` // the leader, by the address that the worker joined at
	Address string `json:"address,omitempty"`
	Name    string `json:"name,omitempty"` // in the certificate
	Token   Token  `json:"token"`
}

// message is one of control: one of its fields is set.
type message struct {
	Hello     *hello     `json:"hello,omitempty"`
	Open      *open      `json:"open,omitempty"`
	Opened    *opened    `json:"opened,omitempty"`
	Assign    *assign    `json:"assign,omitempty"`
	Loaded    *loaded    `json:"loaded,omitempty"`
	Connect   *connect   `json:"connect,omitempty"`
	Connected *connected `json:"connected,omitempty"`
	Look      *look      `json:"look,omitempty"`
	Seen      *seen      `json:"seen,omitempty"`
	Reset     *reset     `json:"reset,omitempty"`
	Bye       *bye       `json:"bye,omitempty"`
}

// Control carries messages between a worker and the leader.
type Control interface {
	Send(message []byte) error          // by one goroutine at a time
	Receive() (message []byte, _ error) // by one goroutine
}

func send(c Control, m *message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return c.Send(text)
}

func receive(c Control) (*message, error) {
	text, err := c.Receive()
	if err != nil {
		return nil, err
	}
	m := new(message)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(m); err != nil {
		return nil, fmt.Errorf("a message of control: %w", err)
	}
	return m, nil
}

// errSequence reports a message that does not belong there.
var errSequence = errors.New("a message out of sequence")

// joinTimeout bounds each step of joining that waits for the peer alone.
const joinTimeout = 10 * time.Second

// connectTimeout bounds the making of hops.
const connectTimeout = 10 * time.Second
