package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/local"
	"krater/actors/local/config"
	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
	"krater/models"
	"krater/stages/source"
	"krater/transport/client"
)

// asProgram makes the test binary the program itself, for tests that need a
// process of their own: signals, exit status, time from start to ready.
const asProgram = "TEST_AS_KRATER"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "KRATER_") {
			os.Unsetenv(name)
		}
	}
	// Servers of the tests keep their batches apart from the user's.
	state, err := os.MkdirTemp("", "krater-state-")
	if err != nil {
		panic(err)
	}
	os.Setenv("XDG_STATE_HOME", state)
	status := m.Run()
	os.RemoveAll(state)
	os.Exit(status)
}

// outcome holds the exit status and the output of a command.
type outcome struct {
	status   int
	out, err string
}

// krater runs one command line in this process.
func krater(t testing.TB, in string, args ...string) outcome {
	t.Helper()
	var out, err bytes.Buffer
	status := run(args, &console.Env{In: strings.NewReader(in), Out: &out, Err: &err})
	return outcome{status, out.String(), err.String()}
}

// tinyDir is the built-in model, or its folder where none is built in.
func tinyDir() string {
	if _, err := models.Default(); err != nil {
		return modelDir
	}
	return ""
}

// started is the built-in model with its pipeline, for flags of krater run.
func started(t testing.TB, args ...string) (*local.Model, *actors.Pipeline) {
	t.Helper()
	return startedOf(t, tinyDir(), args...)
}

// startedOf is started for the model of a folder.
func startedOf(t testing.TB, dir string, args ...string) (*local.Model, *actors.Pipeline) {
	t.Helper()
	var c cli
	ctx, file, err := cmdline.Parse(&c, append([]string{"run"}, args...))
	if err != nil {
		t.Fatal(err)
	}
	e := &console.Env{Out: io.Discard, Err: io.Discard, Ctx: ctx, File: file}
	s, err := openedFor(e, dir, c.Run.Options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	p, err := s.Pipeline(zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return s, p
}

// openedFor is a folder's model, loaded for flags.
func openedFor(e *console.Env, dir string, f config.Options) (*local.Model, error) {
	src, err := source.Open(dir)
	if err != nil {
		return nil, err
	}
	return local.Load(context.Background(), console.ForLoad(e, src, f, config.Case{}))
}

// answers runs a command line that must succeed and gives its standard output.
func answers(t testing.TB, in string, args ...string) string {
	t.Helper()
	o := krater(t, in, args...)
	if o.status != 0 {
		t.Fatalf("krater %s: status %d\n%s", strings.Join(args, " "), o.status, o.err)
	}
	return o.out
}

// refuses runs a command line that must fail with a short message that has all
// the words, without a trace of a panic.
func refuses(t testing.TB, status int, args []string, words ...string) {
	t.Helper()
	o := krater(t, "", args...)
	if o.status != status {
		t.Errorf("krater %s: status %d, want %d\n%s", strings.Join(args, " "), o.status, status, o.err)
	}
	checkComplaint(t, o.err, words...)
}

// complaintMax bounds an error message on the terminal, in bytes: some twenty
// faults of a model are listed.
const complaintMax = 2500

func checkComplaint(t testing.TB, message string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(message, w) {
			t.Errorf("the message does not say %q:\n%s", w, message)
		}
	}
	for _, w := range []string{"panic", "goroutine ", ".go:", "runtime error"} {
		if strings.Contains(message, w) {
			t.Errorf("the message shows the program's inside (%q):\n%s", w, message)
		}
	}
	if message == "" || len(message) > complaintMax {
		t.Errorf("the message has %d bytes, want 1 to %d", len(message), complaintMax)
	}
}

// linesMax bounds what is kept of a log, in bytes.
const linesMax = 1 << 20

// lines is a writer that keeps the last of what it gets and lets tests wait for
// a line.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // closed and replaced with every write
	// written counts the writes, without the lines about requests, which the waiting test sends.
	written atomic.Int64
}

func newLines() *lines { return &lines{more: make(chan struct{})} }

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.more)
	l.more = make(chan struct{})
	if !bytes.Contains(p, []byte(`"message":"request"`)) {
		l.written.Add(1)
	}
	if l.text.Len() > linesMax {
		l.text.Next(linesMax / 2)
	}
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// wait returns the first line with the words; it fails the test when done is
// closed or patience ends before.
func (l *lines) wait(t testing.TB, words string, done <-chan struct{}) (found string) {
	t.Helper()
	l.until(t, words, done, func(text string) bool {
		for line := range strings.Lines(text) {
			if strings.Contains(line, words) && strings.HasSuffix(line, "\n") {
				found = line
				return true
			}
		}
		return false
	})
	return found
}

// waitAny waits for anything at all.
func (l *lines) waitAny(t testing.TB, done <-chan struct{}) {
	t.Helper()
	l.until(t, "output", done, func(text string) bool { return text != "" })
}

func (l *lines) until(t testing.TB, what string, done <-chan struct{}, enough func(string) bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		l.mu.Lock()
		text, more := l.text.String(), l.more
		l.mu.Unlock()
		if enough(text) {
			return
		}
		select {
		case <-more:
		case <-done:
			t.Fatalf("it ended without %q:\n%s", what, l)
		case <-deadline:
			t.Fatalf("no %q in time:\n%s", what, l)
		}
	}
}

// site is a running server as its clients see it.
type site struct {
	t    testing.TB
	base string // http://127.0.0.1:1234
	key  string
	http *http.Client
	log  *lines
	out  *lines
	end  context.CancelFunc // the stop signal
	done chan struct{}      // closed when serve has returned
	err  error              // what it returned
}

// open starts a server in this process on a free port, with krater-tiny unless
// the flags say otherwise. It is stopped at the end of the test.
func open(t testing.TB, flags ...string) *site {
	t.Helper()
	s := begin(t, flags...)
	s.waitReady()
	return s
}

// begin is open without the wait for the model.
func begin(t testing.TB, flags ...string) *site {
	t.Helper()
	var c cli
	args := append([]string{"serve", "--log-level", "debug"}, flags...)
	ctx, file, err := cmdline.Parse(&c, args, kong.Writers(io.Discard, io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, log: newLines(), out: newLines(), done: make(chan struct{})}
	e := &console.Env{Out: s.out, Err: s.log, Ctx: ctx, File: file}
	log, err := c.Serve.Logger(e)
	if err != nil {
		t.Fatal(err)
	}
	opt, keys, err := c.Serve.serverOptions(log)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	s.base, s.http = "http://"+l.Addr().String(), &http.Client{Transport: transport}
	if opt.TLS != nil {
		s.base = "https://" + l.Addr().String()
		transport.TLSClientConfig = &tls.Config{RootCAs: trust(t, opt.TLS)}
	}
	running, stop := context.WithCancel(context.Background())
	s.end = stop
	go func() {
		defer close(s.done)
		s.err = c.Serve.serve(running, e, l, newLoadingEngine("krater-tiny", keys, e.Shown()), opt, log)
	}()
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return s
}

// trust is a pool with a server's own certificate.
func trust(t testing.TB, c *tls.Config) *x509.CertPool {
	cert, err := x509.ParseCertificate(c.Certificates[0].Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool
}

// stop asks the server to end and waits for it.
func (s *site) stop() error {
	s.t.Helper()
	s.end()
	s.http.CloseIdleConnections()
	select {
	case <-s.done:
		return s.err
	case <-time.After(patience):
		s.t.Fatalf("the server does not end:\n%s", s.log)
		return nil
	}
}

func (s *site) waitReady() {
	s.t.Helper()
	ctx, cancel := s.patient()
	defer cancel()
	if err := client.New(s.base, s.key, s.http).WaitReady(ctx); err != nil {
		s.t.Fatalf("%v, %v\n%s", err, context.Cause(ctx), s.log)
	}
}

// do sends a request and gives status, header and whole body.
func (s *site) do(method, path, body string) (int, http.Header, string) {
	s.t.Helper()
	ctx, cancel := s.patient()
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.base+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	s.dress(req)
	res, err := s.http.Do(req)
	if err != nil {
		s.t.Fatal(err, context.Cause(ctx))
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err, context.Cause(ctx))
	}
	return res.StatusCode, res.Header, string(data)
}

func (s *site) dress(req *http.Request) {
	if s.key != "" {
		req.Header.Set("Authorization", "Bearer "+s.key)
	}
	if req.Method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
}

// metrics reads the samples of /metrics by name with labels.
func (s *site) metrics() map[string]float64 {
	s.t.Helper()
	status, _, text := s.do("GET", "/metrics", "")
	if status != http.StatusOK {
		s.t.Fatalf("/metrics: %d %s", status, text)
	}
	m, err := parseMetrics(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

func parseMetrics(text string) (map[string]float64, error) {
	m := map[string]float64{}
	in := bufio.NewScanner(strings.NewReader(text))
	for in.Scan() {
		line := in.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		if i < 0 {
			return nil, fmt.Errorf("metrics: %q", line)
		}
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			return nil, err
		}
		m[line[:i]] = v
	}
	return m, in.Err()
}

// atRest says what the metrics show that a server without requests must not
// have, or nil.
func atRest(m map[string]float64) error {
	var errs []error
	for _, name := range []string{"krater:num_requests_running", "krater:num_requests_waiting", "krater:kv_cache_usage_perc"} {
		if v, ok := m[name]; !ok || v != 0 {
			errs = append(errs, fmt.Errorf("%s is %v", name, v))
		}
	}
	queues := 0
	for name, v := range m {
		if strings.HasPrefix(name, "krater:actor_queue_depth{") {
			if queues++; v != 0 {
				errs = append(errs, fmt.Errorf("%s is %v", name, v))
			}
		}
	}
	if queues == 0 {
		errs = append(errs, errors.New("no actor's queue is reported"))
	}
	return errors.Join(errs...)
}

// poll tries until check is content or the time is over, and gives the time it
// took.
func (s *site) poll(limit time.Duration, check func() error) time.Duration {
	s.t.Helper()
	start := time.Now()
	for {
		err := check()
		took := time.Since(start)
		switch {
		case err == nil:
			return took
		case took > limit:
			s.t.Errorf("after %v still: %v", took.Round(time.Millisecond), err)
			return took
		}
		<-time.After(2 * time.Millisecond)
	}
}
