package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
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
	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
	"krater/cmd/krater/heatfile"
	"krater/cmd/krater/term"
	"krater/cmd/krater/version"
	"krater/scheduler/files"
	"krater/scheduler/jsonlines"
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
	Listen          string        `help:"Address to listen on." default:"127.0.0.1:8080" placeholder:"HOST:PORT"`
	ServedModelName string        `help:"Name clients use for the model; default: the folder's name, of random weights that of the shape with -random." placeholder:"NAME"`
	APIKeys         string        `name:"api-keys" help:"File of API keys, one a line, each with an optional range of priorities (KEY priority=-10..10); without it no key is asked for." type:"existingfile" placeholder:"FILE"`
	TLSCert         string        `name:"tls-cert" help:"Certificate file (PEM)." type:"existingfile" placeholder:"FILE"`
	TLSKey          string        `name:"tls-key" help:"Its private key (PEM)." type:"existingfile" placeholder:"FILE"`
	Origins         []string      `help:"Browser origins that may call the server, such as https://app.example.org."`
	Hosts           []string      `help:"Names clients may use for a server on loopback without keys, besides localhost and addresses; '*' for any."`
	OpenMetrics     bool          `help:"Serve /metrics and /version without a key."`
	OTLPEndpoint    string        `name:"otlp-endpoint" help:"OpenTelemetry collector that gets a span for every request, over HTTP, such as http://127.0.0.1:4318." placeholder:"URL"`
	Pprof           bool          `help:"Serve Go's profiles under /debug/pprof, of a server on loopback only."`
	MaxConcurrent   int           `help:"Answers over HTTP and WebSockets that may run or wait at once, each choice of a request counted; more are 429." default:"256"`
	DrainTimeout    time.Duration `help:"How long running answers may take after a stop signal." default:"30s"`
	LogLevel        string        `help:"Least level of the log: ${enum}." enum:"debug,info,warn,error" default:"info"`
	LogFormat       string        `help:"Form of the log: ${enum}." enum:"auto,json,text" default:"auto"`
	PrintConfig     bool          `help:"Print the effective settings with where each came from, and exit."`

	out     *lossyWriter     // of the log
	checked *source.Source   // the model, whose small files were read
	keeper  *heatfile.Keeper // of --heat-file; nil: none
}

// maxConcurrentMost bounds --max-concurrent: each has goroutines and buffers of its own.
const maxConcurrentMost = 1 << 16

// servingGCPercent keeps the heap close to what is live. The weights are no part
// of it, and what is (answers kept for retrieval, buffers) would double before the
// default collects; collecting twice as often costs next to nothing here.
const servingGCPercent = 50

// Run implements the command.
func (c *serveCmd) Run(e *console.Env) error {
	if c.PrintConfig {
		return cmdline.PrintConfig(e.Out, e.Ctx, e.File)
	}
	if err := c.heatFlags.check(); err != nil {
		return err
	}
	if err := c.batchFlags.check(); err != nil {
		return err
	}
	signal.Ignore(syscall.SIGPIPE) // a write to a closed pipe is an error, not the end
	log, err := c.logger(e)
	if err != nil {
		return err
	}
	defer e.Shown().Close()
	for _, line := range cmdline.Strangers(e.Ctx.Model, os.Environ()) {
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
		return fmt.Errorf("--listen %s: another program listens there; take another port, or 0 for any that is free", c.Listen)
	}
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	// A model that is refused leaves nothing behind: the batch queue makes its folder after this.
	c.checked = src
	if err = local.Refusal(src, c.Options, config.Case{Heat: c.counted(), Served: true}, e.Here()); err == nil {
		err = c.heatFlags.refusal(src)
	}
	if err != nil {
		l.Close()
		return err
	}
	log.Info().Str("listen", l.Addr().String()).Msg("listening; the model is loading")
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(servingGCPercent)
	}
	ctx, release := untilStopped()
	defer release()
	return c.serve(ctx, e, l, newLateEngine(name, keys, e.Shown()), opt, log)
}

// servedName is what clients call the model. No client takes random weights for the model
// whose shape they have.
func (c *serveCmd) servedName(src *source.Source) string {
	switch {
	case c.ServedModelName != "":
		return c.ServedModelName
	case src.Synth != nil:
		return src.Synth.Shape + "-random"
	}
	return src.Name
}

// serve opens the doors, loads the model behind them and waits for the end.
// Clients see 503 on /ready until the model is loaded.
func (c *serveCmd) serve(ctx context.Context, e *console.Env, l net.Listener, late *lateEngine, opt server.Options, log zerolog.Logger) error {
	start := time.Now()
	name := late.name
	if c.OTLPEndpoint != "" {
		opt.Caller = otlp.Caller
	}
	srv, door := openDoors(late, opt, log)
	if err := srv.Register(c.out.metric()); err != nil {
		return errors.Join(err, l.Close())
	}
	desk, err := c.openBatches(srv, name, log)
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

	var s *local.Model
	var p *actors.Pipeline
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		err = files.Guard(func() (err error) {
			s, p, err = c.load(ctx, e, late, log)
			return err
		})
	}()
	select {
	case <-loaded:
	case <-ctx.Done(): // the load goes on until the process ends, which is now
		e.Shown().Close()
		log.Info().Msg("stopped while loading")
		return l.Close()
	}
	if err != nil {
		l.Close()
		desk.withdraw()
		return err
	}
	defer s.Close()
	defer c.keepHeat(log)()
	log.Info().Str("model", name).Str("listen", l.Addr().String()).Dur("after_ms", time.Since(start)).Msg("ready")
	c.announce(e, l.Addr(), name, time.Since(start))
	desk.start()

	err = c.await(ctx, p, served, log)
	return errors.Join(err, c.shutdown(srv, door, desk, p, log))
}

// await waits for a reason to end: a signal, a listener or a pipeline that has failed. With weights
// that are gone a new start would not help: the server goes on, and /health and the answer to
// every request tell what is missing.
func (c *serveCmd) await(ctx context.Context, p *actors.Pipeline, served <-chan error, log zerolog.Logger) error {
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
			log.Error().Err(p.Err()).Msg("the model can serve nobody any more; restore the file and start the server again")
			failed = nil
		}
	}
}

// spansTimeout bounds the sending of the last spans.
const spansTimeout = 5 * time.Second

// closeSpans sends what is left.
func closeSpans(e *otlp.Exporter, log zerolog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), spansTimeout)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		log.Warn().Err(err).Msg("spans are lost")
	}
}

// load brings the model up behind the doors.
func (c *serveCmd) load(ctx context.Context, e *console.Env, late *lateEngine, log zerolog.Logger) (*local.Model, *actors.Pipeline, error) {
	defer e.Shown().End()
	e.Shown().Set("prepare", term.Steps, 0, 0)
	src, err := c.SourceOr(c.Model)
	if c.checked != nil {
		src, err = c.checked, nil
	}
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
	if s.Placement != nil {
		log.Info().Str("device", s.Rank().Name()).Str("experts", s.WhereExperts()).Msg("experts placed")
	}
	log.Info().Str("device", s.Rank().Name()).Str("kernels", s.Host.Choices().String()).Int("threads", s.Host.Team().Threads()).
		Int64("weight_bytes", s.Parts.WeightBytes).Int("kv_tokens", lim.Blocks*lim.BlockTokens).Int("context", lim.Context).Msg("model loaded")
	p, err := s.Pipeline(log)
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	g, err := s.Gateway(p, late.name)
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
	return s, p, nil
}

// batchGrace is how much longer than other answers the lines of batches are waited for.
const batchGrace = 10 * time.Second

// shutdown lets running answers finish, then ends everything in the order of a
// request's way.
func (c *serveCmd) shutdown(srv *server.Server, door *responses.Door, desk *batchDesk, p *actors.Pipeline, log zerolog.Logger) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.DrainTimeout)
	defer cancel()
	doorDone, deskDone := make(chan error, 1), make(chan error, 1)
	go func() { doorDone <- door.Shutdown(ctx) }()
	// What the servers below cut comes back to the desk a moment after the timeout.
	grace, release := context.WithTimeout(context.Background(), c.DrainTimeout+batchGrace)
	defer release()
	go func() { deskDone <- desk.shutdown(grace) }()
	if err := srv.Shutdown(ctx); err != nil {
		log.Warn().Err(err).Msg("answers were cut")
	}
	if err := <-doorDone; err != nil {
		log.Warn().Err(err).Msg("WebSocket answers were cut")
	}
	if err := <-deskDone; err != nil {
		log.Warn().Err(err).Msg("lines of batches were given up; they are run after the next start")
	}
	if err := p.Close(); err != nil {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}

// announce tells a person what to do next.
func (c *serveCmd) announce(e *console.Env, addr net.Addr, name string, took time.Duration) {
	scheme, key, others := "http", "", ""
	at := addr.String()
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() { // which is no place to go to
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
	if c.Shape != "" { // it has no chat template
		chat = ""
	}
	fmt.Fprintf(e.Out, "  open %s://%s/trace in a browser: the pipeline at work%s\n", scheme, at, chat)
	if others != "" {
		fmt.Fprintf(e.Out, "  from other machines: %s://%s\n", scheme, others)
	}
	if c.Shape != "" {
		fmt.Fprintf(e.Out, "  curl -s %s://%s/v1/completions -H 'Content-Type: application/json'%s -d '{\"prompt\":\"abc\",\"max_tokens\":16}'\n\n", scheme, at, key)
		fmt.Fprintf(e.Out, "Its weights are random, and its answers noise; how long they take is true.\n\n")
		return
	}
	fmt.Fprintf(e.Out, "  curl -s %s://%s/v1/chat/completions -H 'Content-Type: application/json'%s -d '{\"messages\":[{\"role\":\"user\",\"content\":\"What is a lighthouse?\"}]}'\n\n", scheme, at, key)
}

// showMessage has the message of a log line shown. The writer quotes its other fields.
func showMessage(line map[string]any) error {
	if text, ok := line[zerolog.MessageFieldName].(string); ok {
		line[zerolog.MessageFieldName] = term.Shown(text)
	}
	return nil
}

// logger writes to standard error: text on a terminal, JSON lines elsewhere. How far the load is becomes a bar
// beside text on a terminal, and lines of the log elsewhere.
func (c *serveCmd) logger(e *console.Env) (log zerolog.Logger, err error) {
	level, err := zerolog.ParseLevel(c.LogLevel)
	if err != nil {
		return zerolog.Nop(), err
	}
	c.out = &lossyWriter{w: e.Err}
	out, bar, text := jsonlines.Writer(c.out), io.Writer(nil), c.LogFormat == "text" || c.LogFormat == "auto" && term.Is(e.Err)
	if text {
		bar = e.Err
	}
	e.Progress = term.NewProgress(bar, console.ProgressEvery, func(s term.State) { console.LogProgress(log)(s) })
	if text {
		out = zerolog.ConsoleWriter{Out: e.Progress.Beside(c.out), TimeFormat: time.TimeOnly, NoColor: !term.Colours(e.Err), FormatPrepare: showMessage}
	}
	log = zerolog.New(out).Level(level).With().Timestamp().Logger()
	return log, nil
}

func (c *serveCmd) serverOptions(log zerolog.Logger) (opt server.Options, keys *keyring, err error) {
	opt = server.Options{Origins: c.Origins, OpenMetrics: c.OpenMetrics, MaxConcurrent: c.MaxConcurrent, Version: version.Number, Log: &log}
	if c.MaxConcurrent < 1 || c.MaxConcurrent > maxConcurrentMost {
		return opt, nil, fmt.Errorf("--max-concurrent %d: want 1 to %d", c.MaxConcurrent, maxConcurrentMost)
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return opt, nil, errors.New("--tls-cert and --tls-key belong together")
	}
	if c.TLSCert != "" {
		cert, err := readCertificate(c.TLSCert, c.TLSKey)
		if err != nil {
			return opt, nil, fmt.Errorf("--tls-cert: %w", err)
		}
		opt.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	}
	if c.Pprof && !loopback(c.Listen) {
		return opt, nil, fmt.Errorf("--pprof: --listen %s can be reached from other machines, which could stop this one with profiles", c.Listen)
	}
	switch {
	case c.APIKeys != "":
	case loopback(c.Listen):
		opt.Hosts = append([]string{"localhost"}, c.Hosts...)
	default:
		log.Warn().Str("listen", c.Listen).Msg("whoever reaches this address can use the model; --api-keys asks for keys")
	}
	if c.APIKeys != "" {
		if keys, err = readKeys(c.APIKeys, log); err != nil {
			return opt, nil, err
		}
		opt.Keys = keys.hashes
	}
	return opt, keys, nil
}

// loopback reports whether an address can be reached from this machine only.
func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// keysMaxBytes bounds a file of API keys, and those of a certificate.
const keysMaxBytes = 16 << 20

// readCertificate reads a certificate and its key (PEM).
func readCertificate(certPath, keyPath string) (tls.Certificate, error) {
	cert, err := files.Read(certPath, keysMaxBytes)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := files.Read(keyPath, keysMaxBytes)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}
