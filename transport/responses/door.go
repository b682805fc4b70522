// Package responses is the Responses API over HTTP and over a WebSocket. HTTP has POST
// /v1/responses with and without streaming, and GET, DELETE and cancel of one response. The
// WebSocket (GET /v1/responses with Upgrade) carries the same events, many responses at a time. One
// logic serves both: a request becomes a plan, a plan is driven through the engine into a response,
// and connections follow the response's events.
package responses

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/transport/api"
)

// cancelWait bounds how long a cancelled request's last event is waited for.
const cancelWait = 2 * time.Second

// maxWarming is how many requests, over all WebSockets, may prepare a conversation at a time: each
// tokenizes up to MaxMessage bytes.
const maxWarming = 16

// maxReads is the number of responses fetched at a time.
const maxReads = 256

// Options are the door's settings; a zero field has its default.
type Options struct {
	// Owner identifies the sender of a request; responses are visible to their owner only. nil:
	// there is one owner.
	Owner func(*http.Request) string
	// Peer identifies the client that a limit counts for; "" shares with no one. nil: the owner.
	Peer func(*http.Request) string
	// AllowOrigin reports whether a browser page of the request's Origin may open a WebSocket. nil:
	// only pages of this host, and clients that are not browsers.
	AllowOrigin func(*http.Request) bool
	// ReadBody reads a JSON request body within the server's limits. done says that the engine has
	// taken the request, or that there is an answer. nil: JSON of at most MaxMessage bytes.
	ReadBody func(http.ResponseWriter, *http.Request) (data []byte, done func(), err *api.Error)
	// Work waits until a WebSocket message of the given size may be read and processed; done is as
	// in ReadBody. nil: no wait.
	Work func(ctx context.Context, peer string, bytes int64) (done func(), err *api.Error)
	// Acquire takes a place among the server's generating requests for a peer until release is
	// called. nil: there are enough.
	Acquire func(peer string) (release func(), err *api.Error)
	// Limits sets headers that show what an owner may still use, as the answers of HTTP have them; nil:
	// there are no limits.
	Limits func(owner string, h http.Header)
	// Caller reads the client's span from a header; nil: not needed.
	Caller func(http.Header) engine.Caller

	MaxMessage int64 // bytes of a WebSocket message; 8 MiB
	MaxSockets int   // WebSocket connections at a time; 256
	MaxStreams int   // responses in flight on one of them; 32
	MaxBacklog int   // bytes of text a slow connection may lag behind; 256 KiB

	Keep      time.Duration // how long an ended response is kept; 10 minutes
	MaxKept   int           // responses kept; 4096
	KeptBytes int           // their bytes together; 64 MiB

	SocketLife time.Duration // a WebSocket's longest life; 60 minutes
	Ping       time.Duration // between pings to a client; 25 s
	PongWait   time.Duration // silence after which a client is dead; 60 s
	WriteWait  time.Duration // bound on one write to a client; 10 s
	ReadWait   time.Duration // to receive a message that has begun; 30 s
	Heartbeat  time.Duration // between comments on a silent SSE stream; 15 s
	// RequestTimeout is a request's deadline in the engine; 1 h.
	RequestTimeout time.Duration

	Log zerolog.Logger // the zero value is silent
}

func (o Options) withDefaults() Options {
	if o.Owner == nil {
		o.Owner = func(*http.Request) string { return "" }
	}
	if o.Peer == nil {
		o.Peer = o.Owner
	}
	if o.AllowOrigin == nil {
		o.AllowOrigin = sameOrigin
	}
	def(&o.MaxMessage, 8<<20)
	if o.ReadBody == nil {
		o.ReadBody = func(w http.ResponseWriter, r *http.Request) ([]byte, func(), *api.Error) {
			data, err := readBody(w, r, o.MaxMessage)
			return data, func() {}, err
		}
	}
	if o.Work == nil {
		o.Work = func(context.Context, string, int64) (func(), *api.Error) { return func() {}, nil }
	}
	if o.Caller == nil {
		o.Caller = func(http.Header) engine.Caller { return engine.Caller{} }
	}
	if o.Acquire == nil {
		o.Acquire = func(string) (func(), *api.Error) { return func() {}, nil }
	}
	def(&o.MaxSockets, 256)
	def(&o.MaxStreams, 32)
	def(&o.MaxBacklog, 256<<10)
	def(&o.Keep, 10*time.Minute)
	def(&o.MaxKept, 4096)
	def(&o.KeptBytes, 64<<20)
	def(&o.SocketLife, 60*time.Minute)
	def(&o.Ping, 25*time.Second)
	def(&o.PongWait, 60*time.Second)
	def(&o.WriteWait, 10*time.Second)
	def(&o.ReadWait, 30*time.Second)
	def(&o.Heartbeat, 15*time.Second)
	def(&o.RequestTimeout, time.Hour)
	return o
}

func def[T ~int | ~int64](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// Door serves the Responses API of one engine.
type Door struct {
	engine engine.Engine
	opt    Options
	log    zerolog.Logger
	store  *store
	talks  *talks
	// warming are requests that only prepare.
	warming *api.Shares
	// reads are GETs of responses, whose answers are in memory until they are read.
	reads *api.Shares

	mu       sync.Mutex
	draining bool
	running  map[*response]struct{}
	sockets  map[*socket]struct{}
	idle     *sync.Cond // signalled when running or sockets shrink
}

// New makes a door. Shutdown ends what it started.
func New(e engine.Engine, o Options) *Door {
	o = o.withDefaults()
	d := &Door{
		engine: e, opt: o, log: o.Log, store: newStore(o.Keep, o.MaxKept, o.KeptBytes), talks: newTalks(o.Log),
		warming: api.NewShares(maxWarming), reads: api.NewShares(maxReads), running: map[*response]struct{}{}, sockets: map[*socket]struct{}{},
	}
	d.idle = sync.NewCond(&d.mu)
	return d
}

// SaveIn reads the conversations that are saved in records, and saves what becomes of them. Without it they end with the process. It
// comes before the door serves requests.
func (d *Door) SaveIn(records Records) error { return d.talks.load(records) }

// Mount adds the door's routes; each pattern has a method.
func (d *Door) Mount(route func(pattern string, h http.Handler)) {
	route("POST /v1/responses", http.HandlerFunc(d.post))
	route("GET /v1/responses", http.HandlerFunc(d.upgrade))
	route("GET /v1/responses/{id}", http.HandlerFunc(d.get))
	route("GET /v1/responses/{id}/input_items", http.HandlerFunc(d.inputItems))
	route("DELETE /v1/responses/{id}", http.HandlerFunc(d.delete))
	route("POST /v1/responses/{id}/cancel", http.HandlerFunc(d.cancel))
	route("POST /v1/responses/input_tokens", http.HandlerFunc(d.count))
	d.mountConversations(route)
}

// Handler serves every route of the door.
func (d *Door) Handler() http.Handler {
	mux := http.NewServeMux()
	d.Mount(mux.Handle)
	return mux
}

// enter registers a response that starts; false while shutting down.
func (d *Door) enter(r *response) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining {
		return false
	}
	d.running[r] = struct{}{}
	return true
}

func (d *Door) leave(r *response) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.running, r)
	d.idle.Broadcast()
}

// Running counts the responses in flight and the WebSocket connections.
func (d *Door) Running() (responses, sockets int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.running), len(d.sockets)
}

// Shutdown refuses new requests and lets the running ones end; when ctx is done it fails the
// remaining ones. Each WebSocket is closed with 1001 after the final events of its responses. It
// returns nil once all goroutines of the door have ended, or ctx's error if it had to cut answers
// short.
func (d *Door) Shutdown(ctx context.Context) error {
	d.mu.Lock()
	d.draining = true
	for s := range d.sockets {
		s.drain(closing{code: closeGoingAway, text: errShutdown.Error()})
	}
	d.mu.Unlock()
	defer d.store.close()
	unhook := context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for r := range d.running {
			r.stop(errShutdown)
		}
	})
	defer unhook()
	d.mu.Lock()
	defer d.mu.Unlock()
	cut := false
	for len(d.running) > 0 || len(d.sockets) > 0 {
		d.idle.Wait()
		cut = cut || ctx.Err() != nil
	}
	if cut {
		return ctx.Err()
	}
	return nil
}
