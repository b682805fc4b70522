// Package batches is the Batch API: uploaded files, batches made of them, and the runner of their
// lines. Lines run in this process through the same handlers as requests from outside, when no
// other request needs the model. What was accepted survives the process; see package batchqueue.
package batches

import (
	"context"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"krater/scheduler/batchqueue"
	"krater/transport/api"
)

// Options are the door's settings. Store, Model and Inside must be set; another zero field has its
// default.
type Options struct {
	Store *batchqueue.Store
	Model string // the served model; batches made for another wait for a server of theirs
	// Endpoints are the paths that lines may name.
	Endpoints []string
	// Inside handles a line on behalf of an owner; it must be safe for concurrent use.
	Inside func(owner string) http.Handler

	// Owner identifies the sender of a request; files and batches are visible to their owner only.
	// nil: there is one owner.
	Owner func(*http.Request) string
	// Peer identifies the client that a limit counts for; "" shares with no one. nil: the owner.
	Peer func(*http.Request) string
	// AllowOrigin reports whether a browser page of the request's Origin may upload. nil: all.
	AllowOrigin func(*http.Request) bool
	// ReadBody reads a JSON request body within the server's limits; done says that it is answered.
	ReadBody func(http.ResponseWriter, *http.Request) (data []byte, done func(), err *api.Error)
	// Ready is nil while new work is accepted. nil: always.
	Ready func() error

	InFlight int // lines at a time; 8

	// Answers are committed in groups: what came within CommitDelay, or more than CommitLines or
	// CommitBytes.
	CommitDelay time.Duration // 50 ms
	CommitLines int           // 256
	CommitBytes int           // 4 MiB

	RetryMin time.Duration // wait before a line that was turned away is tried again; 250 ms, doubled each time
	RetryMax time.Duration // 30 s
	Poll     time.Duration // between looks at the clock; 1 s
	// BodyTimeout bounds the silence of an uploading client; 30 s. The whole upload may take twice
	// that, plus the time for its bytes at uploadRate. WriteTimeout bounds one write to a
	// downloading client; 10 s.
	BodyTimeout, WriteTimeout time.Duration

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
	if o.Ready == nil {
		o.Ready = func() error { return nil }
	}
	def(&o.InFlight, 8)
	def(&o.CommitDelay, 50*time.Millisecond)
	def(&o.CommitLines, 256)
	def(&o.CommitBytes, 4<<20)
	def(&o.RetryMin, 250*time.Millisecond)
	def(&o.RetryMax, 30*time.Second)
	def(&o.Poll, time.Second)
	def(&o.BodyTimeout, 30*time.Second)
	def(&o.WriteTimeout, 10*time.Second)
	return o
}

func def[T ~int | ~int64](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// maxUploads bounds uploads at a time: each has a connection and a buffer. One of several peers has
// three quarters of them.
const maxUploads = 32

// Door serves the Batch API of one store.
type Door struct {
	opt    Options
	store  *batchqueue.Store
	runner *runner
	// uploads are the uploads in progress.
	uploads *api.Shares
}

// New makes a door. Lines are run from Start on.
func New(o Options) *Door {
	o = o.withDefaults()
	return &Door{opt: o, store: o.Store, runner: newRunner(&o), uploads: api.NewShares(maxUploads)}
}

// handlers returns the door's routes; d may be nil where none is called.
func (d *Door) handlers() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"POST /v1/files":               d.upload,
		"GET /v1/files":                d.files,
		"GET /v1/files/{id}":           d.file,
		"GET /v1/files/{id}/content":   d.content,
		"DELETE /v1/files/{id}":        d.deleteFile,
		"POST /v1/batches":             d.create,
		"GET /v1/batches":              d.batches,
		"GET /v1/batches/{id}":         d.batch,
		"POST /v1/batches/{id}/cancel": d.cancel,
	}
}

// Mount adds the door's routes; each pattern has a method.
func (d *Door) Mount(route func(pattern string, h http.Handler)) {
	for pattern, h := range d.handlers() {
		route(pattern, h)
	}
}

// Start begins to run what the store holds, also from before.
func (d *Door) Start() { d.runner.start() }

// Shutdown starts no more lines and waits for those in flight, whose handlers the server ends. It
// commits the answers that have arrived; the other lines run after the next Start. The error is
// ctx's if it ended first. The store stays open.
func (d *Door) Shutdown(ctx context.Context) error { return d.runner.shutdown(ctx) }

// Closed answers the routes of a server that keeps no batches with a 400 that says why.
func Closed(route func(pattern string, h http.Handler), why string) {
	refuse := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		api.NotServed("%s", why).Write(w)
	})
	var none *Door
	for pattern := range none.handlers() {
		route(pattern, refuse)
	}
}
