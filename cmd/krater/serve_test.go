package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/rs/zerolog"

	"krater/cmd/krater/console"
	"krater/stages/source"
	"krater/stages/weights/cache"
)

// outside is a program's server as clients see it.
func (p *program) outside() *site {
	return &site{t: p.t, base: p.address(), http: &http.Client{Transport: &http.Transport{}}, log: p.err}
}

// endless asks for more text than any test waits for.
func endless(max int) question {
	return greedy("Tell me about the river.", max).with("ignore_eos", true).with("skip_special_tokens", false)
}

// TestReady measures the time from the start of the process. The goal is 1.5 s; the bound only
// tells a hang from a slow machine.
func TestReady(t *testing.T) {
	p := launch(t, "serve", "--listen", "127.0.0.1:0")
	s := p.outside()
	s.waitReady()
	took := time.Since(p.started)
	t.Logf("ready %v after the start of the process; it says %s", took.Round(time.Millisecond), strings.TrimSpace(p.out.String()))
	if took > 20*time.Second {
		t.Errorf("ready after %v", took)
	}
	// The command it offers has to work.
	offer := p.out.wait(t, "curl ", p.done)
	if _, body, ok := strings.Cut(offer, " -d '"); !ok || !strings.Contains(offer, " "+s.base+"/v1/chat/completions ") {
		t.Errorf("it offers %q", offer)
	} else if status, _, text := s.do("POST", "/v1/chat/completions", strings.TrimSuffix(body, "'\n")); status != 200 || !strings.Contains(text, "lighthouse") {
		t.Errorf("what it offers gives %d %s", status, text)
	}
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		t.Errorf("status %d\n%s", status, p.err)
	}
}

// stalled gives flags of a server whose load waits for another process that seems to build its
// weight cache, until finish is called. It says "waiting" when it does.
func stalled(t *testing.T) (flags []string, finish func()) {
	t.Helper()
	src, err := source.Open(modelDir)
	if err != nil {
		t.Fatal(err)
	}
	cfg, _, err := src.Config()
	if err != nil {
		t.Fatal(err)
	}
	config, err := src.Read("config.json", false)
	if err != nil {
		t.Fatal(err)
	}
	set, err := src.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	print, err := cache.FingerprintOf(config, cfg, set)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	folder := filepath.Join(dir, print.String())
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(filepath.Join(folder, "experts_cpu_int8_row.bin.lock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return []string{"--model", modelDir, "--cpu-expert-bits", "8", "--group-size", "row", "--cache-dir", dir}, func() { lock.Close() }
}

// TestWhileLoading: /health answers, everything that needs the model says 503.
func TestWhileLoading(t *testing.T) {
	flags, finish := stalled(t)
	s := begin(t, flags...)
	s.log.wait(t, "waiting", s.done)
	for path, want := range map[string]int{"/health": 200, "/ready": 503, "/version": 200, "/metrics": 200} {
		if status, _, text := s.do("GET", path, ""); status != want {
			t.Errorf("%s while loading: %d %s", path, status, text)
		}
	}
	for _, r := range routes {
		_, err := s.ask(r, greedy(lighthouse, 3))
		var refused *refusal
		if !errors.As(err, &refused) || refused.status != 503 {
			t.Errorf("%s while loading: %v", r.name, err)
		}
	}
	status, header, _ := s.do("POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}]}`)
	if status != 503 || header.Get("Retry-After") == "" {
		t.Errorf("%d %v", status, header)
	}
	finish()
	s.waitReady()
	if got := s.reply(t, routes[0], greedy(lighthouse, 0)); got.text != readGolden(t).Prompts[0].Answer {
		t.Errorf("%v", got)
	}
}

// TestStopWhileLoading: the signal is not kept waiting for the model.
func TestStopWhileLoading(t *testing.T) {
	flags, finish := stalled(t)
	defer finish()
	p := launch(t, append([]string{"serve", "--listen", "127.0.0.1:0"}, flags...)...)
	p.err.wait(t, "waiting", p.done)
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		t.Errorf("status %d\n%s", status, p.err)
	}
}

// TestDrain: after a stop signal running answers come to their end while new ones are refused; then
// the process ends with 0. A terminal that is closed is such a signal, and its shell may send it
// again.
func TestDrain(t *testing.T) {
	const length = 500
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // a program that this one starts does not ignore it, even if this one runs under nohup
	defer signal.Stop(hangups)
	p := launch(t, "serve", "--listen", "127.0.0.1:0")
	s := p.outside()
	s.waitReady()
	type end struct {
		way string
		got reply
		err error
	}
	ends := make(chan end)
	begun := make(chan struct{}, 8)
	hold := make(chan struct{})
	for _, r := range streams(endless(length)) {
		go func() {
			pieces := 0
			got, err := r.ask(context.Background(), s, endless(length), func(string) error {
				if pieces++; pieces == 2 {
					begun <- struct{}{}
					<-hold // the client takes no more until the others were refused
				}
				return nil
			})
			ends <- end{r.name, got, err}
		}()
	}
	for range streams(endless(length)) {
		<-begun
	}
	p.signal(syscall.SIGHUP)
	s.poll(patience, func() error {
		if status, _, _ := s.do("GET", "/ready", ""); status != 503 {
			return errors.New("/ready does not say 503")
		}
		return nil
	})
	p.signal(syscall.SIGHUP)
	for _, r := range routes {
		_, err := s.ask(r, greedy(lighthouse, 3))
		var refused *refusal
		if !errors.As(err, &refused) || refused.status != 503 {
			t.Errorf("a new request over %s while draining: %v", r.name, err)
		}
	}
	close(hold)
	for range streams(endless(length)) {
		e := <-ends
		// The server closes a WebSocket itself, with 1001.
		if e.way == "websocket" && websocket.IsCloseError(errors.Unwrap(e.err), websocket.CloseGoingAway) {
			e.err = nil
		}
		if e.err != nil || e.got.completion != length || e.got.finish != "length" {
			t.Errorf("%s: %d tokens, %q, %v", e.way, e.got.completion, e.got.finish, e.err)
		}
	}
	if status := p.wait(); status != 0 {
		t.Errorf("status %d\n%s", status, p.err)
	}
}

// TestDrainTimeout: what does not end in time is cut with an error, and the process still ends with
// 0.
func TestDrainTimeout(t *testing.T) {
	p := launch(t, "serve", "--listen", "127.0.0.1:0", "--drain-timeout", "1ms")
	s := p.outside()
	s.waitReady()
	begun, ended := make(chan struct{}), make(chan error)
	go func() {
		pieces := 0
		_, err := routes[1].ask(context.Background(), s, endless(2000), func(string) error {
			if pieces++; pieces == 1 {
				close(begun)
			}
			return nil
		})
		ended <- err
	}()
	<-begun
	p.signal(syscall.SIGTERM)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "shutting down") {
		t.Errorf("the cut answer ends with %v", err)
	}
	if status := p.wait(); status != 0 {
		t.Errorf("status %d\n%s", status, p.err)
	}
}

// TestSecondSignal: who cannot wait for the drain is not made to.
func TestSecondSignal(t *testing.T) {
	p := launch(t, "serve", "--listen", "127.0.0.1:0", "--drain-timeout", "10m")
	s := p.outside()
	s.waitReady()
	var all sync.WaitGroup
	begun := make(chan struct{}, 8)
	for range 8 { // some seconds of work
		all.Go(func() {
			var once sync.Once
			_, _ = routes[1].ask(context.Background(), s, endless(2000), func(string) error {
				once.Do(func() { begun <- struct{}{} })
				return nil
			})
		})
	}
	for range 8 {
		<-begun
	}
	p.signal(syscall.SIGTERM)
	p.err.wait(t, "draining", p.done)
	s.poll(patience, func() error { // the first one may not be done with quite yet
		select {
		case <-p.done:
			return nil
		default:
			_ = p.cmd.Process.Signal(syscall.SIGTERM)
			return errors.New("the program runs")
		}
	})
	if status := p.wait(); status != -1 {
		t.Errorf("status %d, want an end by the signal\n%s", status, p.err)
	}
	all.Wait()
}

// TestNothingIsLeft: a server that has stopped leaves no goroutine behind.
func TestNothingIsLeft(t *testing.T) {
	open(t).stop() // what is made once stays
	before := runtime.NumGoroutine()
	s := open(t, "--layer-groups", "2", "--expert-pools", "2", "--inline-below=-1s")
	for _, r := range routes {
		s.reply(t, r, greedy(lighthouse, 5))
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	s.checkGoroutines(before)
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	refuses(t, 1, []string{"serve", "--listen", l.Addr().String()}, "--listen", l.Addr().String(), "another program uses this address", "another port")
}

// TestAnnounced: what is to be tried is an address that a browser can go to.
func TestAnnounced(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ip    net.IP
		at    string
		other bool
	}{{net.IPv4(127, 0, 0, 1), "http://127.0.0.1:8080", false}, {net.IPv6loopback, "http://[::1]:8080", false}, {net.IPv6unspecified, "http://127.0.0.1:8080", true}, {net.IPv4zero, "http://127.0.0.1:8080", true}} {
		var out bytes.Buffer
		(&serveCmd{}).announce(&console.Env{Out: &out}, &net.TCPAddr{IP: c.ip, Port: 8080}, "tiny", time.Second)
		if s := out.String(); strings.Count(s, c.at) != 3 || strings.Contains(s, host+":8080") != c.other {
			t.Errorf("%s: %s", c.ip, s)
		}
	}
}

// TestOpenDoor: an address that other machines reach, without keys, is warned of.
func TestOpenDoor(t *testing.T) {
	for listen, warned := range map[string]bool{"127.0.0.1:0": false, "localhost:0": false, "[::1]:0": false, "0.0.0.0:0": true, ":0": true} {
		var out bytes.Buffer
		if _, _, err := (&serveCmd{Listen: listen, MaxConcurrent: 1, MaxSockets: 1, MaxConnections: 1}).serverOptions(zerolog.New(&out)); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out.String(), "--api-keys"); got != warned {
			t.Errorf("%s: warned %v: %s", listen, got, &out)
		}
	}
}

// TestNames: the server goes by the name it was given, and answers to no other model's, nor on
// loopback to a host name that may be a trap.
func TestNames(t *testing.T) {
	s := open(t, "--hosts", "krater.test")
	status, _, text := s.do("GET", "/v1/models", "")
	models := decode[struct {
		Data []struct {
			ID  string
			Max int `json:"max_model_len"`
		}
	}](t, text)
	if status != 200 || len(models.Data) != 1 || models.Data[0].ID != "krater-tiny" || models.Data[0].Max != 2048 {
		t.Errorf("%d %s", status, text)
	}
	for _, r := range routes {
		_, err := s.ask(r, greedy(lighthouse, 3).with("model", "gpt-4"))
		var refused *refusal
		if !errors.As(err, &refused) || refused.status != 404 || refused.code != "model_not_found" || !strings.Contains(refused.message, "gpt-4") {
			t.Errorf("%s: %v", r.name, err)
		}
		if _, err := s.ask(r, greedy(lighthouse, 3).with("model", "krater-tiny")); err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
	}
	for host, want := range map[string]int{"krater.test": 200, "localhost": 200, "evil.example": 421} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", s.base+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		res, err := s.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("as %s: %d, want %d", host, res.StatusCode, want)
		}
	}
}
