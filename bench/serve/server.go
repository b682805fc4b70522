package serve

import (
	"context"
	"strings"
	"sync"
	"time"

	"krater/transport/client"
)

// ServerDelta is a load as the server's own metrics show it: gauges before and after, the largest
// values in between, and the increase of counters.
type ServerDelta struct {
	Before  Gauges `json:"before"`
	After   Gauges `json:"after"`
	Most    Gauges `json:"most"`
	Prompt  int    `json:"prompt_tokens"`
	Answer  int    `json:"generation_tokens"`
	Aborted int    `json:"aborted"`
	Errors  int    `json:"errors"`
	// Preemptions and the share of prefix look-ups that hit; -1: not counted.
	Preemptions int     `json:"preemptions"`
	PrefixHits  float64 `json:"prefix_hit_share"`
	QueueMean   float64 `json:"queue_mean_ms"` // 0 of nothing
}

// Gauges are a server's state at one moment.
type Gauges struct {
	Running int     `json:"running"`
	Waiting int     `json:"waiting"`
	KV      float64 `json:"kv_usage"` // share of the blocks
}

// Names of metrics without the program's prefix, krater: or vllm:.
const (
	mRunning     = "num_requests_running"
	mWaiting     = "num_requests_waiting"
	mKV          = "kv_cache_usage_perc"
	mGraphs      = "step_graphs"
	mPrompt      = "prompt_tokens_total"
	mAnswer      = "generation_tokens_total"
	mPreemptions = "num_preemptions"
	mQueries     = "prefix_cache_queries"
	mHits        = "prefix_cache_hits"
	mQueueSum    = "request_queue_time_seconds_sum"
	mQueueCount  = "request_queue_time_seconds_count"
	mActorQueue  = "actor_queue_depth"
)

// prefixes of programs whose metrics have these names.
var prefixes = []string{"krater:", "vllm:"}

// scrape is a look at /metrics.
type scrape struct{ client.Metrics }

// get returns a sample's sum over its labels, whatever program's it is; counters may end in _total.
func (s scrape) get(name string) (float64, bool) {
	for _, p := range prefixes {
		for _, full := range []string{p + name, p + name + "_total"} {
			if v, ok := s.Sum(full); ok {
				return v, true
			}
		}
	}
	return 0, false
}

func (s scrape) gauges() Gauges {
	running, _ := s.get(mRunning)
	waiting, _ := s.get(mWaiting)
	kv, _ := s.get(mKV)
	return Gauges{int(running), int(waiting), kv}
}

// finished returns the number of requests ended for a reason.
func (s scrape) finished(reason string) float64 {
	sum := 0.0
	for key, v := range s.Metrics {
		if strings.Contains(key, "request_success") && strings.Contains(key, `finished_reason="`+reason+`"`) {
			sum += v
		}
	}
	return sum
}

// lookTimeout bounds a look at a server that may be stuck.
const lookTimeout = 10 * time.Second

// observer looks at a server during a load.
type observer struct {
	look   func(context.Context) (client.Metrics, error)
	before scrape
	stop   context.CancelFunc
	done   sync.WaitGroup
	most   Gauges
}

// observe begins to look every so often; nil: the server shows no metrics.
func observe(ctx context.Context, c *client.Client, every time.Duration) *observer {
	look := func(ctx context.Context) (client.Metrics, error) {
		ctx, stop := context.WithTimeout(ctx, lookTimeout)
		defer stop()
		return c.Metrics(ctx)
	}
	before, err := look(ctx)
	if err != nil {
		return nil
	}
	o := &observer{look: look, before: scrape{before}}
	o.most = o.before.gauges()
	ctx, o.stop = context.WithCancel(ctx)
	o.done.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			if m, err := look(ctx); err == nil {
				g := scrape{m}.gauges()
				o.most = Gauges{max(o.most.Running, g.Running), max(o.most.Waiting, g.Waiting), max(o.most.KV, g.KV)}
			}
		}
	})
	return o
}

// end reads the metrics a last time and returns the difference; nil if the server does not answer
// any more.
func (o *observer) end(ctx context.Context) *ServerDelta {
	o.stop()
	o.done.Wait()
	m, err := o.look(ctx)
	if err != nil {
		return nil
	}
	after := scrape{m}
	gained := func(name string) (float64, bool) {
		a, _ := o.before.get(name)
		b, ok := after.get(name)
		return b - a, ok
	}
	count := func(name string) int {
		v, _ := gained(name)
		return int(v)
	}
	d := &ServerDelta{
		Before: o.before.gauges(), After: after.gauges(), Most: o.most, Prompt: count(mPrompt), Answer: count(mAnswer),
		Aborted:     int(after.finished("abort") - o.before.finished("abort")),
		Errors:      int(after.finished("error") - o.before.finished("error")),
		Preemptions: -1, PrefixHits: -1,
	}
	if v, ok := gained(mPreemptions); ok {
		d.Preemptions = int(v)
	}
	if asked, ok := gained(mQueries); ok {
		hits, _ := gained(mHits)
		d.PrefixHits = hits / max(1, asked)
	}
	if n, _ := gained(mQueueCount); n > 0 {
		sum, _ := gained(mQueueSum)
		d.QueueMean = 1e3 * sum / n
	}
	return d
}
