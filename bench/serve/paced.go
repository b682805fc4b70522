package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"krater/bench/stat"
	"krater/transport/api"
	"krater/transport/client"
)

// Paced holds many streams of one server open, one on each WebSocket, and measures how late their
// tokens come. The server's engine makes tokens whose text is the time at which they were made, on the
// clock of this machine.
type Paced struct {
	URL     string
	PID     int // of the server
	Streams int
	Windows int
	Window  time.Duration
	// Read returns when the first token of a text was made, and the rest of the text.
	Read func(text string) (at time.Time, rest string, ok bool)
	// Progress is told what happens; may be nil.
	Progress func(string)

	client *client.Client
	delays atomic.Pointer[delays] // of the present window
	begun  atomic.Int64           // streams that have had a token
}

// delays has the delays of a window.
type delays struct {
	mu   sync.Mutex
	hist Histogram // seconds
}

// PacedReport has the figures of each window.
type PacedReport struct {
	Streams int `json:"streams"`
	// RestMB and Idle are the server's memory without connections and with all of them, before a
	// stream began; MB are 10^6 bytes.
	RestMB  float64       `json:"rest_mb"`
	Idle    float64       `json:"idle_kib_per_connection"`
	Windows []PacedWindow `json:"windows"`
}

// PacedWindow has the figures of one window.
type PacedWindow struct {
	Seconds float64 `json:"seconds"`
	Tokens  int     `json:"tokens"`
	Delay   Summary `json:"delay"`
	// Server is processor time of the server's own code for each token, Kernel what the kernel used
	// for it, and Client the time of the client in both. Further processes of the machine used Other
	// cores.
	Server float64 `json:"server_us_per_token"`
	Kernel float64 `json:"kernel_us_per_token"`
	Client float64 `json:"client_us_per_token"`
	Other  float64 `json:"other_cores"`
	// Memory of the server beyond RestMB, for each connection.
	Memory float64 `json:"kib_per_connection"`
}

// dialing is how many connections are opened at a time.
const dialing = 64

// Run opens the streams and measures.
func (p *Paced) Run(ctx context.Context) (*PacedReport, error) {
	if p.Progress == nil {
		p.Progress = func(string) {}
	}
	p.client = client.New(p.URL, "", nil)
	r := &PacedReport{Streams: p.Streams}
	rest, err := p.look()
	if err != nil {
		return nil, err
	}
	r.RestMB = rest.rss / 1e6
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	sockets, err := p.dial(ctx)
	defer func() {
		for _, s := range sockets {
			s.Drop()
		}
	}()
	if err != nil {
		return nil, err
	}
	p.Progress(fmt.Sprintf("%d connections are open", len(sockets)))
	idle, err := p.look()
	if err != nil {
		return nil, err
	}
	perSocket := func(l look) float64 { return (l.rss - rest.rss) / 1024 / float64(p.Streams) }
	r.Idle = perSocket(idle)
	p.delays.Store(&delays{})
	failed := make(chan error, len(sockets))
	for _, s := range sockets {
		go func() { failed <- p.follow(s) }()
	}
	for p.begun.Load() < int64(len(sockets)) {
		select {
		case err := <-failed:
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	p.Progress("all streams have begun")
	for range p.Windows {
		w, err := p.measure(ctx, failed, perSocket)
		if err != nil {
			return nil, err
		}
		p.Progress(fmt.Sprintf("p99 %.1f ms, %.1f us of the server and %.1f us of the kernel for each token, %.2f cores for other processes", w.Delay.P99, w.Server, w.Kernel, w.Other))
		r.Windows = append(r.Windows, w)
	}
	return r, nil
}

// measure is one window.
func (p *Paced) measure(ctx context.Context, failed <-chan error, perSocket func(look) float64) (w PacedWindow, err error) {
	from, err := p.look()
	if err != nil {
		return w, err
	}
	window := &delays{}
	p.delays.Store(window)
	select {
	case err := <-failed:
		return w, err
	case <-ctx.Done():
		return w, ctx.Err()
	case <-time.After(p.Window):
	}
	p.delays.Store(&delays{})
	to, err := p.look()
	if err != nil {
		return w, err
	}
	window.mu.Lock()
	defer window.mu.Unlock()
	took := to.at.Sub(from.at).Seconds()
	// The processor time is of a little more than the window.
	tokens := float64(window.hist.N) * took / p.Window.Seconds()
	server, own := to.user+to.kernel-from.user-from.kernel, to.own-from.own
	return PacedWindow{
		Seconds: p.Window.Seconds(), Tokens: window.hist.N, Delay: window.hist.Summary(),
		Server: 1e6 * (to.user - from.user) / tokens, Kernel: 1e6 * (to.kernel - from.kernel) / tokens, Client: 1e6 * own / tokens,
		Other: (to.machine - from.machine - server - own) / took, Memory: perSocket(to),
	}, nil
}

// look is the state of the machine at one moment; processor times are seconds.
type look struct {
	at                         time.Time
	user, kernel, own, machine float64
	rss                        float64 // of the server, bytes
}

func (p *Paced) look() (l look, err error) {
	l.at = time.Now()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
	if err != nil {
		return l, err
	}
	// The fields behind the name, which may hold anything (proc_pid_stat(5)): the first is number 3.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	const user, kernel, pages = 14 - 3, 15 - 3, 24 - 3
	if len(fields) <= pages {
		return l, errors.New("/proc shows no times of the server")
	}
	for i, to := range map[int]*float64{user: &l.user, kernel: &l.kernel, pages: &l.rss} {
		if *to, err = strconv.ParseFloat(fields[i], 64); err != nil {
			return l, err
		}
	}
	l.user, l.kernel, l.rss = l.user/ticks, l.kernel/ticks, l.rss*float64(os.Getpagesize())
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return l, err
	}
	l.own = float64(own.Utime.Nano()+own.Stime.Nano()) / 1e9
	l.machine, err = busy()
	return l, err
}

// ticks are the parts of a second that /proc counts (USER_HZ).
const ticks = 100

// busy is the processor time that all processes of the machine have used, in seconds.
func busy() (float64, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	sum := 0.0
	for i, field := range strings.Fields(line) {
		if i == 0 || i == 4 || i == 5 || i > 8 { // "cpu", idle, iowait; guests are in user
			continue
		}
		v, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, err
		}
		sum += v / ticks
	}
	return sum, nil
}

// dial opens all connections.
func (p *Paced) dial(ctx context.Context) ([]*client.Socket, error) {
	sockets := make([]*client.Socket, p.Streams)
	errs := make([]error, dialing)
	var all sync.WaitGroup
	for i := range dialing {
		all.Go(func() {
			for n := i; n < p.Streams && errs[i] == nil; n += dialing {
				sockets[n], errs[i] = p.client.Dial(ctx)
			}
		})
	}
	all.Wait()
	open := sockets[:0]
	for _, s := range sockets {
		if s != nil {
			open = append(open, s)
		}
	}
	return open, errors.Join(errs...)
}

// follow reads one stream until it fails or ends, which it should not.
func (p *Paced) follow(s *client.Socket) error {
	off := false
	if err := s.Create(&client.ResponseRequest{Sampling: api.Sampling{}, Input: []client.Message{{Role: "user", Content: "hi"}}, Store: &off}); err != nil {
		return err
	}
	first := true
	for {
		e, err := s.Next()
		if err != nil {
			return err
		}
		if e.Over() {
			return errors.New("a stream has ended before the measurement")
		}
		text := e.Delta
		for text != "" {
			at, rest, ok := p.Read(text)
			if !ok {
				return fmt.Errorf("the text %q is not the time of a token", text)
			}
			d := p.delays.Load()
			d.mu.Lock()
			d.hist.Add(time.Since(at).Seconds(), 1)
			d.mu.Unlock()
			text = rest
			if first {
				p.begun.Add(1)
				first = false
			}
		}
	}
}

// median returns the median of a figure over the windows.
func (r *PacedReport) median(of func(*PacedWindow) float64) float64 {
	var all stat.Sample
	for i := range r.Windows {
		all = append(all, of(&r.Windows[i]))
	}
	return all.Median()
}

// Text prints the report.
func (r *PacedReport) Text(w io.Writer) error {
	t := stat.Table{
		Title:   fmt.Sprintf("%d streams over as many WebSockets", r.Streams),
		Columns: []string{"window", "tokens/s", "delay p50 ms", "p99", "longest", "server us/token", "kernel us/token", "client us/token", "KiB/connection", "cores of others"},
	}
	for i, x := range r.Windows {
		t.Add(i+1, float64(x.Tokens)/x.Seconds, x.Delay.P50, x.Delay.P99, x.Delay.Max, x.Server, x.Kernel, x.Client, x.Memory, x.Other)
	}
	if err := t.Text(w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nMedians: 99 %% of the tokens within %.1f ms, %.1f us of the server and %.1f us of the kernel for each, %.1f KiB for each connection (%.1f before its stream began).\n",
		r.median(func(w *PacedWindow) float64 { return w.Delay.P99 }), r.median(func(w *PacedWindow) float64 { return w.Server }),
		r.median(func(w *PacedWindow) float64 { return w.Kernel }), r.median(func(w *PacedWindow) float64 { return w.Memory }), r.Idle)
	return err
}
