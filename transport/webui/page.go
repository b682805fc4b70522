// Package webui is the page that shows a running pipeline: embedded files, a WebSocket that pushes
// changes, and downloads of the trace. Without a viewer it only records one point of the charts per
// second.
package webui

import (
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/actors/trace"
	"krater/transport/api"
)

// Source is the pipeline that is shown. All methods are safe for concurrent use.
type Source interface {
	Info() engine.Info
	Stats() engine.Stats
	// Topology has no nodes while the model is loading.
	Topology() engine.Topology
	// Trace is nil while the model is loading.
	Trace() *trace.Registry
	// Running are the open requests, and some that have ended lately.
	Running() []engine.Running
	Cancel(id uint64)
	Heat() engine.Heat
}

// Options are the page's settings; a zero field has its default.
type Options struct {
	// Owner identifies the sender of a request; only the owner can cancel it. nil: there is one
	// owner.
	Owner func(*http.Request) string
	// Peer identifies the client that a limit counts for; "" shares with no one. nil: the owner.
	Peer func(*http.Request) string
	// AllowOrigin reports whether a browser page of the request's Origin may connect. nil: all.
	AllowOrigin func(*http.Request) bool
	// Draining is closed when the server shuts down; viewers are sent away then.
	Draining <-chan struct{}
	// Ready answers GET /ready; the page shows what it says about a loading model. nil: nothing is
	// shown.
	Ready      http.Handler
	Every      time.Duration // between two pushes; 250 ms
	Sample     time.Duration // between two points of the charts; 1 s
	MaxViewers int           // connections at a time; 16
	MaxSkipped int           // pushes that a viewer may miss, one after the other; 40
	MaxEvents  int           // of an answer or a download; 40000
	Ping       time.Duration // between pings to a viewer; 25 s
	PongWait   time.Duration // silence after which a viewer counts as gone; 60 s
	WriteWait  time.Duration // bound on one write; 10 s
	RecordMax  time.Duration // the longest recording; 60 s
	Recordings int           // at a time, and as many exports; 4

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
		o.AllowOrigin = func(*http.Request) bool { return true }
	}
	def(&o.Every, 250*time.Millisecond)
	def(&o.Sample, time.Second)
	def(&o.MaxViewers, 16)
	def(&o.MaxSkipped, 40)
	def(&o.MaxEvents, 40_000)
	def(&o.Ping, 25*time.Second)
	def(&o.PongWait, 60*time.Second)
	def(&o.WriteWait, 10*time.Second)
	def(&o.RecordMax, time.Minute)
	def(&o.Recordings, 4)
	return o
}

func def[T ~int | ~int64](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

// Page serves the page of one source.
type Page struct {
	src  Source
	opt  Options
	past *history

	mu      sync.Mutex
	viewers map[*viewer]struct{}
	visible int           // viewers that look
	stop    chan struct{} // ends the meter; nil: it does not run
	last    *state        // last state pushed; nil without viewers

	recordings *api.Shares
	exports    *api.Shares
}

// New makes a page.
func New(src Source, opt Options) *Page {
	opt = opt.withDefaults()
	return &Page{src: src, opt: opt, past: newHistory(opt.Sample), viewers: map[*viewer]struct{}{}, recordings: api.NewShares(opt.Recordings), exports: api.NewShares(opt.Recordings)}
}

// Mount adds the page's routes: open is for what needs no key, which is files that hold no data,
// guarded for the rest. From now on the history of the charts is kept, until Draining is closed.
func (p *Page) Mount(open, guarded func(pattern string, h http.Handler)) {
	go p.remember()
	open("GET /{$}", http.HandlerFunc(home))
	open("GET /trace", p.file("index.html"))
	open("GET /trace/assets/{name}", http.HandlerFunc(p.asset))
	guarded("GET /trace/ws", http.HandlerFunc(p.upgrade))
	guarded("GET /trace/export", http.HandlerFunc(p.export))
	guarded("GET /trace/record", http.HandlerFunc(p.record))
	guarded("POST /trace/requests/{id}/cancel", http.HandlerFunc(p.cancel))
}

// loading returns the answer while there is no trace.
func loading() *api.Error {
	return &api.Error{Status: http.StatusServiceUnavailable, Type: api.TypeServer, Message: "the model is loading", RetryAfter: time.Second}
}
