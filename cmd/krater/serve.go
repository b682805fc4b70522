package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/local"
	"krater/actors/local/config"
	"krater/cmd/krater/checks"
	"krater/cmd/krater/cluster"
	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
	"krater/cmd/krater/heatfile"
	"krater/cmd/krater/keyring"
	"krater/cmd/krater/term"
	"krater/cmd/krater/version"
	"krater/scheduler/files"
	"krater/stages/source"
	"krater/transport/otlp"
	"krater/transport/responses"
	"krater/transport/server"
)

type serveCmd struct {
	source.Folder
	source.Synthetic
	config.Options
	heatFlags
	batchFlags
	console.LogFlags
	cluster.Flags
	Listen          string        `help:"Address and port to listen on; port 0 takes a free one." default:"127.0.0.1:8080" placeholder:"HOST:PORT"`
	ServedModelName string        `help:"Name of the model for clients; default: ORG/MODEL for a model of a hub, the folder's name, or the shape's name and -random." placeholder:"NAME"`
	APIKeys         string        `name:"api-keys" help:"File of API keys, one per line, each with an optional range of priorities (KEY priority=-10..10). Without it the server asks for no key." type:"existingfile" placeholder:"FILE"`
	TLSCert         string        `name:"tls-cert" help:"TLS certificate file (PEM)." type:"existingfile" placeholder:"FILE"`
	TLSKey          string        `name:"tls-key" help:"Private key file of --tls-cert (PEM)." type:"existingfile" placeholder:"FILE"`
	Origins         []string      `help:"Browser origins that may call the server, such as https://app.example.org."`
	Hosts           []string      `help:"Further Host names that clients may use for a server on loopback without keys; localhost and addresses always work, '*' allows all."`
	OpenMetrics     bool          `help:"Serve /metrics and /version without a key."`
	OTLPEndpoint    string        `name:"otlp-endpoint" help:"OpenTelemetry collector that receives a span for every request, over HTTP, such as http://127.0.0.1:4318." placeholder:"URL"`
	Pprof           bool          `help:"Serve Go's profiles under /debug/pprof, on loopback only."`
	MaxConcurrent   int           `help:"Maximum number of answers, over HTTP and WebSocket, that run or wait at once. Each choice of a request counts; more are answered with 429." default:"256"`
	MaxSockets      int           `help:"Maximum number of open WebSockets for responses." default:"256"`
	MaxConnections  int           `help:"Maximum number of open connections; more are closed at once." default:"4096"`
	DrainTimeout    time.Duration `help:"Time for running answers to finish after a stop signal." default:"30s"`
	PrintConfig     bool          `help:"Print the effective settings and the source of each, and exit."`

	checked *source.Source   // the model, after its small files were read
	keeper  *heatfile.Keeper // keeps --heat-file; nil: none
}

// maxConcurrentMost bounds --max-concurrent, --max-sockets and --max-connections: each answer and each
// connection has its own goroutines and buffers.
const maxConcurrentMost = 1 << 16

// Run implements the command.
func (c *serveCmd) Run(e *console.Env) error {
	if c.PrintConfig {
		return cmdline.PrintConfig(e.Out, e.Ctx, e.File)
	}
	if err := c.heatFlags.check(); err != nil {
		return err
	}
	if err := errors.Join(c.batchFlags.check(), c.Flags.Check(&c.Options)); err != nil {
		return err
	}
	if c.Flags.On() && (c.HeatFile != "" || c.RecordRouting != "") {
		return errors.New("--worker-listen: router choices and heat maps are of one process; run without --heat-file and --record-routing")
	}
	signal.Ignore(syscall.SIGPIPE) // writing to a closed pipe returns an error instead
	log, err := c.Logger(e)
	if err != nil {
		return err
	}
	defer e.Shown().Close()
	for _, line := range cmdline.UnknownVariables(cmdline.All(&cli{}), os.Environ()) {
		log.Warn().Msg(line)
	}
	opt, keys, err := c.serverOptions(log)
	if err != nil {
		return err
	}
	src, err := c.SourceOr(c.Model)
	if err != nil {
		return err
	}
	name := c.servedName(src)
	l, err := net.Listen("tcp", c.Listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("--listen %s: another program uses this address; choose another port, or 0 for any free one", c.Listen)
	}
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	// A refused model leaves nothing behind: the batch queue creates its folder after this.
	c.checked = src
	if !c.Flags.On() { // a cluster has more memory than this machine
		err = local.Refusal(src, c.Options, config.Case{Heat: c.counted(), Served: true}, e.Here())
	}
	if err == nil {
		err = c.heatFlags.refusal(src)
	}
	if err != nil {
		l.Close()
		return err
	}
	log.Info().Str("listen", l.Addr().String()).Msg("listening; the model is loading")
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(console.ServingGCPercent)
	}
	ctx, release := untilStopped()
	defer release()
	return c.serve(ctx, e, l, newLoadingEngine(name, keys, e.Shown()), opt, log)
}

// servedName returns the model's name for clients. A model with random weights gets a name that no
// client mistakes for the real one.
func (c *serveCmd) servedName(src *source.Source) string {
	switch {
	case c.ServedModelName != "":
		return c.ServedModelName
	case src.Synth != nil:
		return src.Synth.Shape + "-random"
	}
	return src.Name
}

// serve starts the server, loads the model and waits for the end. Clients see 503 on /ready until
// the model is loaded.
func (c *serveCmd) serve(ctx context.Context, e *console.Env, l net.Listener, late *loadingEngine, opt server.Options, log zerolog.Logger) error {
	start := time.Now()
	name := late.name
	if c.OTLPEndpoint != "" {
		opt.Caller = otlp.Caller
	}
	srv, door := openDoors(late, opt, c.MaxSockets, log)
	if err := srv.Register(c.Dropped()); err != nil {
		return errors.Join(err, l.Close())
	}
	desk, err := c.openBatches(srv, door, name, log)
	if err != nil {
		l.Close()
		return err
	}
	defer desk.close()
	if c.Pprof {
		openProfiles(srv)
	}
	if c.OTLPEndpoint != "" {
		spans, err := otlp.Open(c.OTLPEndpoint, version.Number, late, log)
		if err != nil {
			l.Close()
			return fmt.Errorf("--otlp-endpoint: %w", err)
		}
		defer closeSpans(spans, log)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()

	var p pipeline
	free := func() {}
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		err = files.Guard(func() (err error) {
			if c.Flags.On() {
				p, err = c.lead(ctx, e, late, log)
				return err
			}
			p, free, err = c.load(ctx, e, late, log)
			return err
		})
	}()
	select {
	case <-loaded:
	case <-ctx.Done(): // the load continues until the process exits
		e.Shown().Close()
		log.Info().Msg("stopped while loading")
		return l.Close()
	}
	if err != nil {
		l.Close()
		desk.withdraw()
		return err
	}
	defer free()
	defer c.Recording.End(log)
	defer c.keepHeat(log)()
	log.Info().Str("model", name).Str("listen", l.Addr().String()).Dur("after_ms", time.Since(start)).Msg("ready")
	c.announce(e, l.Addr(), name, time.Since(start))
	desk.start()

	err = c.await(ctx, p, served, log)
	return errors.Join(err, c.shutdown(srv, door, desk, p, log))
}

// await waits for a reason to end: a signal, or a failure of the listener or the pipeline. If a
// file of weights has vanished, a restart would not help: the server continues, and /health and the
// answer to every request say what is missing.
func (c *serveCmd) await(ctx context.Context, p pipeline, served <-chan error, log zerolog.Logger) error {
	failed := p.Failed()
	for {
		select {
		case <-ctx.Done():
			log.Info().Dur("timeout_ms", c.DrainTimeout).Msg("draining")
			return nil
		case err := <-served:
			return err
		case <-failed:
			if _, lost := errors.AsType[*files.LostError](p.Err()); !lost {
				return p.Err()
			}
			log.Error().Err(p.Err()).Msg("the model can no longer answer requests; restore the file and restart the server")
			failed = nil
		}
	}
}

// spansTimeout bounds the time to send the last spans.
const spansTimeout = 5 * time.Second

// closeSpans sends the remaining spans.
func closeSpans(e *otlp.Exporter, log zerolog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), spansTimeout)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		log.Warn().Err(err).Msg("some spans were not sent")
	}
}

// source is the model.
func (c *serveCmd) source() (*source.Source, error) {
	if c.checked != nil {
		return c.checked, nil
	}
	return c.SourceOr(c.Model)
}

// pipeline is one of this process, or of a cluster.
type pipeline interface {
	Failed() <-chan struct{}
	Err() error
	Close() error
}

// lead gathers workers while the server already listens, and waits until they serve the model.
func (c *serveCmd) lead(ctx context.Context, e *console.Env, late *loadingEngine, log zerolog.Logger) (pipeline, error) {
	e.Shown().Set("wait for workers", term.Steps, 0, 0)
	src, err := c.source()
	if err != nil {
		return nil, err
	}
	with := console.ForLoad(e, src, c.Options, config.Case{Served: true})
	with.Report, with.Name = console.ReportTo(log, e.Shown()), late.name
	ready := make(chan struct{})
	l, err := c.Flags.Lead(with, c.Synthetic, log, func(g *actors.Gateway, _ *actors.Pipeline) {
		late.set(g)
		close(ready)
	})
	if err != nil {
		return nil, err
	}
	select {
	case <-ready:
		e.Shown().End()
		return l, nil
	case <-l.Failed():
		return nil, l.Close()
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), l.Close())
	}
}

// load loads the model while the server already listens. free frees it when its pipeline is closed.
func (c *serveCmd) load(ctx context.Context, e *console.Env, late *loadingEngine, log zerolog.Logger) (p *local.Served, free func(), err error) {
	defer e.Shown().End()
	e.Shown().Set("prepare", term.Steps, 0, 0)
	src, err := c.source()
	if err != nil {
		return nil, nil, err
	}
	with := console.ForLoad(e, src, c.Options, config.Case{Heat: c.counted(), Served: true})
	with.Report = console.ReportTo(log, e.Shown())
	s, err := local.Prepare(with)
	if err != nil {
		return nil, nil, err
	}
	checks.Warn(log, append(checks.All(s.Plan, c.Model), checks.CheckEnd(src, s.Config, s.Gen)))
	if line := s.Plan.Chosen(); line != "" {
		log.Info().Msg(line)
	}
	if err := c.readHeat(s, log); err != nil {
		s.Close()
		return nil, nil, err
	}
	if err := s.Load(ctx); err != nil {
		return nil, nil, err
	}
	e.Shown().Set("start the pipeline", term.Steps, 0, 0)
	lim := s.Parts.Limits
	for _, p := range s.Ranks {
		if p.Placement != nil {
			log.Info().Str("device", p.Name()).Str("experts", p.WhereExperts()).Msg("experts placed")
		}
	}
	log.Info().Str("device", s.Rank().Name()).Str("kernels", s.Host.Choices().String()).Int("threads", s.Host.Team().Threads()).
		Int64("weight_bytes", s.Parts.WeightBytes).Int("kv_tokens", lim.Blocks*lim.BlockTokens).Int("context", lim.Context).Msg("model loaded")
	p, err = s.Serve(log)
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	g, err := s.Gateway(p.Pipeline(), late.name)
	if err == nil {
		err = c.followHeat(s, p, log)
	}
	if err != nil {
		p.Close()
		s.Close()
		return nil, nil, err
	}
	s.MemoryUse().Log(log)
	late.set(g)
	return p, s.Close, nil
}

// batchGrace is the extra time for the lines of batches to end after other answers.
const batchGrace = 10 * time.Second

// shutdown lets running answers finish, then stops everything in the order in which a request
// passes it.
func (c *serveCmd) shutdown(srv *server.Server, door *responses.Door, desk *batchAPI, p pipeline, log zerolog.Logger) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.DrainTimeout)
	defer cancel()
	doorDone, deskDone := make(chan error, 1), make(chan error, 1)
	go func() { doorDone <- door.Shutdown(ctx) }()
	// The lines that the servers below cut off return to the desk a moment after the timeout.
	grace, release := context.WithTimeout(context.Background(), c.DrainTimeout+batchGrace)
	defer release()
	go func() { deskDone <- desk.shutdown(grace) }()
	if err := srv.Shutdown(ctx); err != nil {
		log.Warn().Err(err).Msg("the drain timeout cut off answers")
	}
	if err := <-doorDone; err != nil {
		log.Warn().Err(err).Msg("the drain timeout cut off WebSocket answers")
	}
	if err := <-deskDone; err != nil {
		log.Warn().Err(err).Msg("the drain timeout cut off lines of batches; they run again after the next start")
	}
	if err := p.Close(); err != nil {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}

// announce tells the user what to do next.
func (c *serveCmd) announce(e *console.Env, addr net.Addr, name string, took time.Duration) {
	scheme, key, others := "http", "", ""
	at := addr.String()
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() { // not an address to connect to
		port := strconv.Itoa(tcp.Port)
		at = net.JoinHostPort("127.0.0.1", port)
		if host, err := os.Hostname(); err == nil {
			others = net.JoinHostPort(host, port)
		}
	}
	if c.TLSCert != "" {
		scheme = "https"
	}
	if c.APIKeys != "" {
		key = " -H 'Authorization: Bearer KEY'"
	}
	name = term.Shown(name)
	fmt.Fprintf(e.Out, "Krater serves %s on %s://%s (ready after %.2f s). Try:\n\n", name, scheme, at, took.Seconds())
	chat := ", and a chat box"
	if c.Shape != "" { // random weights have no chat template
		chat = ""
	}
	fmt.Fprintf(e.Out, "  open %s://%s/trace in a browser: the pipeline at work%s\n", scheme, at, chat)
	if others != "" {
		fmt.Fprintf(e.Out, "  from other machines: %s://%s\n", scheme, others)
	}
	if c.Shape != "" {
		fmt.Fprintf(e.Out, "  curl -s %s://%s/v1/completions -H 'Content-Type: application/json'%s -d '{\"prompt\":\"abc\",\"max_tokens\":16}'\n\n", scheme, at, key)
		fmt.Fprintf(e.Out, "Its weights are random and its answers are noise, but their timing is real.\n\n")
		return
	}
	fmt.Fprintf(e.Out, "  curl -s %s://%s/v1/chat/completions -H 'Content-Type: application/json'%s -d '{\"messages\":[{\"role\":\"user\",\"content\":\"What is a lighthouse?\"}]}'\n\n", scheme, at, key)
}

func (c *serveCmd) serverOptions(log zerolog.Logger) (opt server.Options, keys *keyring.Ring, err error) {
	opt = server.Options{Origins: c.Origins, OpenMetrics: c.OpenMetrics, MaxConcurrent: c.MaxConcurrent, MaxConnections: c.MaxConnections, Version: version.Number, Log: &log}
	for _, most := range []struct {
		flag  string
		value int
	}{{"--max-concurrent", c.MaxConcurrent}, {"--max-sockets", c.MaxSockets}, {"--max-connections", c.MaxConnections}} {
		if most.value < 1 || most.value > maxConcurrentMost {
			return opt, nil, fmt.Errorf("%s %d: want 1 to %d", most.flag, most.value, maxConcurrentMost)
		}
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return opt, nil, errors.New("--tls-cert and --tls-key must be used together")
	}
	if c.TLSCert != "" {
		cert, err := readCertificate(c.TLSCert, c.TLSKey)
		if err != nil {
			return opt, nil, fmt.Errorf("--tls-cert: %w", err)
		}
		opt.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	}
	if c.Pprof && !loopback(c.Listen) {
		return opt, nil, fmt.Errorf("--pprof needs --listen on loopback: other machines can reach %s, and profiles can stall the server", c.Listen)
	}
	switch {
	case c.APIKeys != "":
	case loopback(c.Listen):
		opt.Hosts = append([]string{"localhost"}, c.Hosts...)
	default:
		log.Warn().Str("listen", c.Listen).Msg("anyone who can reach this address can use the model; require keys with --api-keys")
	}
	if c.APIKeys != "" {
		if keys, err = keyring.Read(c.APIKeys, log); err != nil {
			return opt, nil, err
		}
		opt.Keys, opt.Limits = keys.Hashes, keys.Limiter().Headers
	}
	return opt, keys, nil
}

// loopback reports whether an address is reachable from this machine only.
func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// certificateMaxBytes bounds the size of a certificate file.
const certificateMaxBytes = 16 << 20

// readCertificate reads a certificate and its key (PEM).
func readCertificate(certPath, keyPath string) (tls.Certificate, error) {
	cert, err := files.Read(certPath, certificateMaxBytes)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := files.Read(keyPath, certificateMaxBytes)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}
