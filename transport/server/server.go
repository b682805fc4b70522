package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"krater/actors/engine"
	"krater/transport/api"
	"krater/transport/openapi"
)

// errShutdown is the cause of a request's cancelled context when Shutdown cut it.
var errShutdown = errors.New("the server is shutting down")

// flushTimeout bounds the wait for the last bytes of finished answers. It is short because net/http
// counts a connection that never sent anything as busy.
const flushTimeout = 500 * time.Millisecond

// Server serves one engine. Make it with New, add routes, then Serve.
type Server struct {
	engine   engine.Engine
	opt      Options
	mux      *http.ServeMux
	methods  map[string][]string // path -> methods, for Allow
	places   *api.Quota          // of generating requests
	work     *api.Quota          // of bytes of requests that are read and tokenized
	registry *prometheus.Registry
	http     *http.Server
	// described are the routes of other doors for /openapi.json.
	described []openapi.Route

	draining  chan struct{} // closed when Shutdown begins
	drainOnce sync.Once
	base      context.Context // ends when Shutdown cuts what still runs
	cut       context.CancelFunc

	mu     sync.Mutex
	active int           // requests inside routed handlers
	idle   chan struct{} // non-nil while Shutdown waits; closed at active == 0
}

// New builds a server with all its own routes.
func New(e engine.Engine, opt Options) *Server {
	s := &Server{
		engine: e, opt: opt.withDefaults(), mux: http.NewServeMux(), methods: map[string][]string{},
		draining: make(chan struct{}),
	}
	s.places, s.work = api.NewQuota(int64(s.opt.MaxConcurrent)), api.NewQuota(s.opt.MaxWork)
	s.base, s.cut = context.WithCancel(context.Background())
	s.registry = newRegistry(s)
	s.routes()
	s.http = &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: s.opt.HeaderTimeout, IdleTimeout: s.opt.IdleTimeout,
		MaxHeaderBytes: 64 << 10, TLSConfig: s.opt.TLS, ErrorLog: errorLog(s.opt.Log),
	}
	return s
}

func (s *Server) routes() {
	s.Route("POST /v1/chat/completions", s.Limit(http.HandlerFunc(s.chat)))
	s.Route("POST /v1/completions", s.Limit(http.HandlerFunc(s.completions)))
	s.Route("POST /v1/messages", s.Limit(http.HandlerFunc(s.messages)))
	s.Route("POST /v1/messages/count_tokens", s.Limit(http.HandlerFunc(s.countTokens)))
	s.Route("GET /v1/models", http.HandlerFunc(s.models))
	s.Route("GET /v1/models/{id...}", http.HandlerFunc(s.model))
	s.Route("POST /tokenize", s.Limit(http.HandlerFunc(s.tokenize)))
	s.Route("GET /tokenizer_info", answers(func() any { return api.NewTokenizer(s.engine.Info()) }))
	s.Route("GET /v1/prefixes", http.HandlerFunc(s.prefixes))
	s.Route("POST /detokenize", s.Limit(http.HandlerFunc(s.detokenize)))
	s.Route("POST /apply-template", s.Limit(http.HandlerFunc(s.applyTemplate)))
	s.ollamaRoutes()
	s.describeRoutes()
	s.Open("GET /health", http.HandlerFunc(s.health))
	s.Open("GET /ready", http.HandlerFunc(s.ready))
	ops := s.Route
	if s.opt.OpenMetrics {
		ops = s.Open
	}
	ops("GET /metrics", s.metrics())
	ops("GET /version", http.HandlerFunc(s.version))
	s.mux.Handle("/", http.HandlerFunc(s.unrouted))
}

// Serve answers connections of l until Shutdown; then it returns nil.
func (s *Server) Serve(l net.Listener) error {
	l = &guests{l, api.NewShares(s.opt.MaxConnections)}
	var err error
	if s.opt.TLS != nil {
		err = s.http.ServeTLS(l, "", "")
	} else {
		err = s.http.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Ready is nil while requests are served: the engine is ready and the server does not drain.
func (s *Server) Ready() error {
	if s.drains() {
		return &engine.Error{Kind: engine.Unavailable, Message: errShutdown.Error()}
	}
	return s.engine.Ready()
}

// drains reports whether Shutdown has begun.
func (s *Server) drains() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}

// Draining is closed when Shutdown begins: doors with long connections end them when their running
// answers are done.
func (s *Server) Draining() <-chan struct{} { return s.draining }

// Shutdown drains: from now on /ready says 503 and new generating requests are refused, while
// running ones finish. What still runs when ctx ends is cut: its context is cancelled and a stream
// gets an error event. The listener stays open during the drain so that probes see it. The error
// says how many requests were cut; nil means none.
func (s *Server) Shutdown(ctx context.Context) error {
	s.drainOnce.Do(func() { close(s.draining) })
	left := s.waitIdle(ctx)
	s.cut()
	if left > 0 {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opt.CutTimeout)
		s.waitIdle(grace)
		cancel()
	}
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := s.http.Shutdown(flush); err != nil {
		_ = s.http.Close()
	}
	if left > 0 {
		return fmt.Errorf("%d requests were cut: %w", left, context.Cause(ctx))
	}
	return nil
}

// waitIdle blocks until no request is active or ctx ends. It returns the number of active requests.
func (s *Server) waitIdle(ctx context.Context) int {
	s.mu.Lock()
	if s.active == 0 {
		s.mu.Unlock()
		return 0
	}
	if s.idle == nil {
		s.idle = make(chan struct{})
	}
	idle := s.idle
	s.mu.Unlock()
	select {
	case <-idle:
		return 0
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.active
	}
}

func (s *Server) enter() {
	s.mu.Lock()
	s.active++
	s.mu.Unlock()
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active--; s.active == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}
