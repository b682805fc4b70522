package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"krater/bench/plot"
	"krater/bench/stat"
	"krater/transport/client"
)

// Watcher looks at a server during a soak.
type Watcher struct {
	Client *client.Client
	PID    int           // reads memory and files of /proc; 0: process_* of /metrics
	Every  time.Duration // between two looks
	Rest   time.Duration // how long the server may take to come to rest
	// Slope is the growth of memory in MB an hour that is no leak yet, Slack what the fitted line
	// must rise in all, so that a short run does not take a heap that finds its size for a leak; in
	// MB.
	Slope, Slack float64
}

// Look is a server's state at one moment.
type Look struct {
	At         float64 `json:"at_s"`
	RSS        float64 `json:"rss_mb"` // 10^6 bytes
	Goroutines float64 `json:"goroutines"`
	Files      float64 `json:"open_files"`
	KV         float64 `json:"kv_usage"`
	Running    float64 `json:"running"`
	Waiting    float64 `json:"waiting"`
	Messages   float64 `json:"messages"` // in all actors' mailboxes
	Graphs     float64 `json:"graphs"`   // steps that GPUs keep as graphs, a cache that fills
}

// Soak is the result of a soak test.
type Soak struct {
	Before, After Look
	Most          Look     `json:"most"` // each the most there was; At is nothing
	Looks         []Look   `json:"looks"`
	Missed        int      `json:"missed"` // looks that the server did not answer
	Warm          float64  `json:"warm_s"` // looks before are not fitted: caches were filling
	RSS           Trend    `json:"rss_mb"`
	Settled       float64  `json:"settled_s"` // from the load's end to rest; -1: never
	Leaks         []string `json:"leaks"`
}

// looksMost bounds the stored looks. Beyond it, every other look is dropped and the interval
// doubles.
const looksMost = 1440

// warmShare of a soak is left to caches and pools to find their size.
const warmShare = 0.2

// slack are the goroutines and files that may be there afterwards and were not before: a scrape's
// own connection, a runtime's helper.
const slackGoroutines, slackFiles = 4, 2

// Errors of a soak.
var errNoMetrics = errors.New("a soak needs the server's /metrics")

// look scrapes once.
func (w *Watcher) look(ctx context.Context, start time.Time) (Look, error) {
	ctx, stop := context.WithTimeout(ctx, lookTimeout)
	defer stop()
	m, err := w.Client.Metrics(ctx)
	if err != nil {
		return Look{}, fmt.Errorf("%w: %w", errNoMetrics, err)
	}
	s := scrape{m}
	l := Look{At: time.Since(start).Seconds()}
	l.KV, _ = s.get(mKV)
	l.Running, _ = s.get(mRunning)
	l.Waiting, _ = s.get(mWaiting)
	l.Messages, _ = s.get(mActorQueue)
	l.Graphs, _ = s.get(mGraphs)
	l.Goroutines = m["go_goroutines"]
	if w.PID == 0 {
		l.RSS, l.Files = m["process_resident_memory_bytes"]/1e6, m["process_open_fds"]
		return l, nil
	}
	if l.RSS, err = residentMB(w.PID); err != nil {
		return Look{}, err
	}
	l.Files, err = openFiles(w.PID)
	return l, err
}

// residentMB reads a process's resident memory.
func residentMB(pid int) (float64, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "statm"))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0, fmt.Errorf("statm: %q", data)
	}
	pages, err := strconv.ParseFloat(fields[1], 64)
	return pages * float64(os.Getpagesize()) / 1e6, err
}

func openFiles(pid int) (float64, error) {
	list, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	return float64(len(list)), err
}

// Watch looks at the server before, during and after load, and judges. load runs to its end and
// leaves no connection open. The server should have answered a few requests before, because memory
// that it allocates once is not a leak.
func (w *Watcher) Watch(ctx context.Context, load func(context.Context) error) (*Soak, error) {
	start := time.Now()
	s := &Soak{Settled: -1}
	var err error
	if s.Before, err = w.look(ctx, start); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- load(ctx) }()
	every := w.Every
	tick := time.NewTicker(every)
	defer tick.Stop()
	for running := true; running; {
		select {
		case err := <-ended:
			if err != nil {
				return nil, err
			}
			running = false
		case <-tick.C:
			l, err := w.look(ctx, start)
			if err != nil {
				s.Missed++
				continue
			}
			s.keep(l)
			if len(s.Looks) == looksMost {
				s.Looks = everyOther(s.Looks)
				every *= 2
				tick.Reset(every)
			}
		}
	}
	if err := w.settle(ctx, start, s); err != nil {
		return nil, err
	}
	s.judge(w)
	return s, nil
}

// keep adds a look.
func (s *Soak) keep(l Look) {
	s.Looks = append(s.Looks, l)
	m := &s.Most
	m.RSS, m.Goroutines, m.Files = max(m.RSS, l.RSS), max(m.Goroutines, l.Goroutines), max(m.Files, l.Files)
	m.KV, m.Running = max(m.KV, l.KV), max(m.Running, l.Running)
	m.Waiting, m.Messages, m.Graphs = max(m.Waiting, l.Waiting), max(m.Messages, l.Messages), max(m.Graphs, l.Graphs)
}

func everyOther(l []Look) []Look {
	out := l[:0]
	for i := 0; i < len(l); i += 2 {
		out = append(out, l[i])
	}
	return out
}

// settlePoll is the time between two looks for rest.
const settlePoll = 100 * time.Millisecond

// settle waits until nothing is left of the load, or as long as it may take.
func (w *Watcher) settle(ctx context.Context, start time.Time, s *Soak) error {
	begin := time.Now()
	for {
		l, err := w.look(ctx, start)
		if err != nil {
			return err
		}
		s.After = l
		if len(s.remains()) == 0 {
			s.Settled = time.Since(begin).Seconds()
			return nil
		}
		if time.Since(begin) > w.Rest {
			return nil
		}
		select {
		case <-time.After(settlePoll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// remains lists what exists now and did not before the load.
func (s *Soak) remains() []string {
	var out []string
	for _, x := range []struct {
		name               string
		before, now, slack float64
	}{
		{"requests running", s.Before.Running, s.After.Running, 0},
		{"requests waiting", s.Before.Waiting, s.After.Waiting, 0},
		{"messages in mailboxes", s.Before.Messages, s.After.Messages, 0},
		{"share of KV blocks in use", s.Before.KV, s.After.KV, 0},
		{"goroutines", s.Before.Goroutines, s.After.Goroutines, slackGoroutines},
		{"open files", s.Before.Files, s.After.Files, slackFiles},
	} {
		if x.now > x.before+x.slack {
			out = append(out, fmt.Sprintf("%s: %v before, %v after", x.name, x.before, x.now))
		}
	}
	return out
}

// judge fits the memory and lists the leaks.
func (s *Soak) judge(w *Watcher) {
	var at, rss []float64
	if n := len(s.Looks); n > 0 {
		s.Warm = warmShare * s.Looks[n-1].At
	}
	most := s.Before.Graphs
	for _, l := range s.Looks { // a GPU's graphs take host memory, up to a bound
		if l.Graphs > most {
			most, s.Warm = l.Graphs, max(s.Warm, l.At)
		}
	}
	for _, l := range s.Looks {
		if l.At >= s.Warm {
			at, rss = append(at, l.At), append(rss, l.RSS)
		}
	}
	s.RSS = fit(at, rss)
	s.Leaks = s.remains()
	if t := s.RSS; t.Points > 0 && t.Low > w.Slope && t.Growth() > w.Slack {
		s.Leaks = append(s.Leaks, fmt.Sprintf("memory grows by %.1f MB/h (95 %%: %.1f to %.1f)", t.Slope, t.Low, t.High))
	}
}

// tables returns the soak's part of a report.
func (s *Soak) tables() []stat.Table {
	t := stat.Table{
		Title:   fmt.Sprintf("Soak, %d looks, %d missed", len(s.Looks), s.Missed),
		Columns: []string{"", "before", "most", "after"},
	}
	for _, x := range []struct {
		name string
		of   func(*Look) float64
	}{
		{"resident MB", func(l *Look) float64 { return l.RSS }}, {"goroutines", func(l *Look) float64 { return l.Goroutines }},
		{"open files", func(l *Look) float64 { return l.Files }}, {"share of KV blocks", func(l *Look) float64 { return l.KV }},
		{"requests running", func(l *Look) float64 { return l.Running }}, {"requests waiting", func(l *Look) float64 { return l.Waiting }},
		{"messages in mailboxes", func(l *Look) float64 { return l.Messages }}, {"step graphs", func(l *Look) float64 { return l.Graphs }},
	} {
		t.Add(x.name, x.of(&s.Before), x.of(&s.Most), x.of(&s.After))
	}
	v := stat.Table{Title: "Verdict", Columns: []string{"", ""}}
	if s.RSS.Points > 0 {
		v.Add("resident memory grows by", fmt.Sprintf("%.2f MB/h, 95 %% of %.2f to %.2f (median of slopes, %d points after %.0f s)", s.RSS.Slope, s.RSS.Low, s.RSS.High, s.RSS.Points, s.Warm))
	} else {
		v.Add("resident memory", fmt.Sprintf("cannot be judged: %d looks after %.0f s, when caches had found their size (%.0f step graphs)", s.RSS.Points, s.Warm, s.After.Graphs))
	}
	if s.Settled >= 0 {
		v.Add("at rest after", fmt.Sprintf("%.1f s", s.Settled))
	}
	for _, l := range s.Leaks {
		v.Add("LEAK", l)
	}
	switch {
	case len(s.Leaks) > 0:
	case s.RSS.Points > 0:
		v.Add("nothing leaked", "")
	default:
		v.Add("nothing else leaked", "a longer soak can judge the memory")
	}
	return []stat.Table{t, v}
}

// charts draw memory with its line, and the rest, over time.
func (s *Soak) charts() []plot.Chart {
	if len(s.Looks) == 0 {
		return nil
	}
	line := func(name string, of func(*Look) float64) plot.Series {
		x := plot.Series{Name: name}
		for i := range s.Looks {
			x.X, x.Y = append(x.X, s.Looks[i].At), append(x.Y, of(&s.Looks[i]))
		}
		return x
	}
	memory := plot.Chart{Title: "Resident memory", X: "s", Y: "MB", Dense: true, Series: []plot.Series{line("resident", func(l *Look) float64 { return l.RSS })}}
	if t := s.RSS; t.Points > 0 {
		from := s.Looks[len(s.Looks)-1].At - 3600*t.Hours
		memory.Series = append(memory.Series, plot.Series{
			Name: fmt.Sprintf("%.2f MB/h", t.Slope), X: []float64{from, from + 3600*t.Hours}, Y: []float64{t.Start, t.Start + t.Slope*t.Hours},
		})
	}
	return []plot.Chart{memory, {Title: "Goroutines, files, queues", X: "s", Y: "number", Dense: true, Series: []plot.Series{
		line("goroutines", func(l *Look) float64 { return l.Goroutines }), line("open files", func(l *Look) float64 { return l.Files }),
		line("running", func(l *Look) float64 { return l.Running }), line("waiting", func(l *Look) float64 { return l.Waiting }),
		line("messages", func(l *Look) float64 { return l.Messages }),
	}}}
}
