package webui

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/actors/trace"
	"krater/transport/enginetest"
	"krater/transport/responses"
	"krater/transport/server"
)

// asServer makes the test binary a server of a fake pipeline at that address, for tests in a
// browser: WEBUI_FAKE=127.0.0.1:0 webui.test. It asks for the key in fakeKey, if there is one.
const (
	asServer = "WEBUI_FAKE"
	fakeKey  = "WEBUI_FAKE_KEY"
)

func TestMain(m *testing.M) {
	if at := os.Getenv(asServer); at != "" {
		if err := serveFake(at); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// fake is a pipeline of two layer groups and three pools that does as if it computed.
type fake struct {
	*enginetest.Engine
	reg *trace.Registry

	mu      sync.Mutex
	stats   engine.Stats
	counts  [][]uint64
	rows    []uint64
	open    []engine.Running
	stopped []uint64
	loading bool
	batch   uint64
}

const (
	fakeLayers  = 24
	fakeExperts = 64
)

func newFake() *fake {
	f := &fake{Engine: enginetest.New(), reg: trace.NewRegistry(4096)}
	f.reg.Device("cuda:0")
	for range fakeLayers {
		f.counts, f.rows = append(f.counts, make([]uint64, fakeExperts)), append(f.rows, 0)
	}
	bounds := []float64{0.001, 0.01, 0.1, 1}
	empty := engine.Histogram{Bounds: bounds, Counts: make([]uint64, len(bounds))}
	f.stats = engine.Stats{
		KVBlocksTotal: 1000, TTFT: empty, ITL: empty, E2E: empty, QueueTime: empty,
		ActorQueue: map[string]int{}, ExpertsComputed: map[string]uint64{}, ExpertCaches: []engine.ExpertCache{{Strategy: "lru", Rank: "cuda:0"}, {Strategy: "learned", Rank: "cuda:0"}},
	}
	return f
}

func (f *fake) Topology() engine.Topology {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.loading {
		return engine.Topology{}
	}
	var t engine.Topology
	add := func(name string, kind engine.NodeKind, index, first, last int) {
		device := ""
		if kind == engine.NodeGroup || kind == engine.NodePool {
			device = "cuda:0"
		}
		t.Nodes = append(t.Nodes, engine.Node{Name: name, Kind: kind, Index: index, Device: device, First: first, Last: last, Rank: index, MemoryNode: -1})
	}
	add("gateway", engine.NodeGateway, 0, 0, 0)
	add("schedule", engine.NodeSchedule, 0, 0, 0)
	add("embed", engine.NodeEmbed, 0, 0, 0)
	for i := range 2 {
		if i == 1 {
			add("link1", engine.NodeLink, 1, 12, 24)
		}
		add(fmt.Sprint("group", i), engine.NodeGroup, i, 12*i, 12*i+12)
		add(fmt.Sprint("split", i), engine.NodeSplit, i, 12*i, 12*i+12)
		add(fmt.Sprint("merge", i), engine.NodeMerge, i, 12*i, 12*i+12)
	}
	for i := range 3 {
		add(fmt.Sprint("pool", i), engine.NodePool, i, 0, 0)
	}
	add("head", engine.NodeHead, 0, 0, 0)
	add("sample", engine.NodeSample, 0, 0, 0)
	add("stream", engine.NodeStream, 0, 0, 0)
	add("copies", engine.NodeCopies, 0, 0, 0)
	add("cuda:0", engine.NodeDevice, 0, 0, 0)
	for _, e := range [][2]string{
		{"gateway", "schedule"}, {"schedule", "embed"}, {"embed", "group0"}, {"group0", "link1"}, {"link1", "group1"}, {"group1", "head"},
		{"head", "sample"}, {"sample", "schedule"}, {"schedule", "stream"}, {"copies", "group0"},
		{"group0", "split0"}, {"merge0", "group0"}, {"group1", "split1"}, {"merge1", "group1"},
	} {
		t.Edges = append(t.Edges, engine.Edge{From: e[0], To: e[1]})
	}
	for i := range 2 {
		for j := range 3 {
			t.Edges = append(t.Edges, engine.Edge{From: fmt.Sprint("split", i), To: fmt.Sprint("pool", j)}, engine.Edge{From: fmt.Sprint("pool", j), To: fmt.Sprint("merge", i)})
		}
	}
	return t
}

func (f *fake) Trace() *trace.Registry {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.loading {
		return nil
	}
	return f.reg
}

func (f *fake) Stats() engine.Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.ActorQueue = map[string]int{}
	for name, n := range f.stats.ActorQueue {
		s.ActorQueue[name] = n
	}
	s.ExpertsComputed = map[string]uint64{"cpu": f.stats.ExpertsComputed["cpu"]}
	s.ExpertCaches = append([]engine.ExpertCache(nil), f.stats.ExpertCaches...)
	for _, h := range []*engine.Histogram{&s.TTFT, &s.ITL, &s.E2E, &s.QueueTime} {
		h.Counts = append([]uint64(nil), h.Counts...)
	}
	return s
}

func (f *fake) Running() []engine.Running {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]engine.Running(nil), f.open...)
}

func (f *fake) Cancel(id uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = append(f.stopped, id)
}

func (f *fake) Heat() engine.Heat {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := engine.Heat{Experts: fakeExperts, TopK: 6}
	for l := range fakeLayers {
		h.Layers = append(h.Layers, l+1)
		h.Tokens = append(h.Tokens, f.rows[l])
		h.Counts = append(h.Counts, append([]uint64(nil), f.counts[l]...))
		resident := make([]bool, fakeExperts)
		for e := range 16 {
			resident[(e*3+l)%fakeExperts] = true
		}
		h.Resident = append(h.Resident, resident)
	}
	return h
}

// step records a step with the given requests that begins at time at and takes about took: half of its
// layers ask pools, the second of which is the slowest. It returns the step's end.
func (f *fake) step(at, took int64, requests int) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batch++
	b := f.batch
	var riders []trace.Rider
	for i := range requests {
		riders = append(riders, trace.Rider{Request: uint64(i + 1), Rows: 1, Decode: true})
	}
	f.reg.Roster().Note(b, riders)
	note := func(name string, kind trace.Kind, sent, from, to int64, layer int, n uint64) {
		f.reg.Ring(name).Record(&trace.Event{Batch: b, Kind: kind, Enqueued: sent, Started: from, Ended: to, Rows: uint32(requests), Layer: int16(layer), Bytes: n})
	}
	unit := took / 100
	note("schedule", trace.Schedule, at, at, at+unit, -1, 0)
	t := at + unit
	note("embed", trace.Embed, t, t+unit/8, t+unit, -1, 0)
	t += unit
	for g := range 2 {
		if g == 1 {
			note("link1", trace.Link, t, t+unit/8, t+unit, -1, uint64(requests*8192))
			t += unit
		}
		group, split, merge := fmt.Sprint("group", g), fmt.Sprint("split", g), fmt.Sprint("merge", g)
		sent, layer := t, -1
		for l := range 4 {
			asked := t + 3*unit
			note(group, trace.Group, sent, t+unit/8, asked+unit, layer, 0)
			layer = g*12 + 3*l
			note(split, trace.Split, asked, asked+unit/8, asked+unit/2, layer, 0)
			var last int64
			for i, long := range []int64{4, 7, 3} {
				name, start := fmt.Sprint("pool", i), asked+unit/2
				end := start + long*unit
				note(name, trace.Experts, start, start+unit/8, end, layer, uint64(long)*4_000_000)
				half := start + long*unit*2/3
				note(trace.PhaseLane(name), trace.PoolUp, 0, start+unit/8, half, layer, 0)
				note(trace.PhaseLane(name), trace.PoolDown, 0, half, end, layer, 0)
				last = max(last, end)
			}
			// The GPU computes what the group gives it, and then waits for a copy half of the time.
			copied := t + 2*unit + int64(l%2)*unit
			note("cuda:0", trace.DeviceGroup, 0, t+unit/8, t+2*unit, layer, 0)
			note(trace.CopyLane("cuda:0"), trace.CopyExperts, 0, t-2*unit, copied, layer, 12<<20)
			if copied > t+2*unit {
				note("cuda:0", trace.CopyWait, 0, t+2*unit, copied, layer, 0)
			}
			note("cuda:0", trace.DeviceGroup, 0, copied, asked+unit, layer, 0)
			note(merge, trace.Merge, last, last+unit/8, last+unit/4, layer, 0)
			sent, t = last+unit/4, last+unit/4
		}
		note(group, trace.Group, sent, t+unit/8, t+unit, layer, 0)
		t += unit
	}
	note("head", trace.Head, t, t+unit/8, t+6*unit, -1, 0)
	t += 6 * unit
	note("sample", trace.Sample, t, t+unit/8, t+unit, -1, 0)
	t += unit
	note("stream", trace.Stream, t, t+unit/8, t+unit, -1, 0)
	f.count(requests)
	return t
}

func (f *fake) count(requests int) {
	s := &f.stats
	s.Steps++
	s.GeneratedTokens += uint64(requests)
	s.ExpertsComputed["cpu"] += 40
	s.ExpertCaches[0].Hits += 30
	s.ExpertCaches[0].Misses += 10
	s.ExpertCaches[0].Copies += 10
	s.ExpertCaches[0].CopiedBytes += 10 << 20
	l := &s.ExpertCaches[1]
	l.Hits, l.Misses, l.Host, l.Copies, l.CopiedBytes = l.Hits+60, l.Misses+5, l.Host+15, l.Copies+7, l.CopiedBytes+7<<20
	s.StepTokens.Count++
	s.StepTokens.Sum += float64(requests)
	s.ITL.Count += uint64(requests)
	for i := 2; i < len(s.ITL.Counts); i++ {
		s.ITL.Counts[i] += uint64(requests)
	}
	s.ActorQueue["pool1"] = int(f.batch % 3)
	for l := range f.counts {
		f.rows[l] += uint64(requests)
		for range 6 * requests / 8 {
			e := int(rand.ExpFloat64() * 7)
			f.counts[l][(e*5+l*11)%fakeExperts]++
		}
	}
}

// follow reads a stream of the fake engine to its end, which never comes, token by token.
func follow(e *enginetest.Engine) {
	text := "x"
	st, err := e.Submit(context.Background(), &engine.Request{Prompt: engine.Prompt{Text: &text}, MaxTokens: 1})
	for err == nil {
		time.Sleep(15 * time.Millisecond)
		_, err = st.Next(context.Background())
	}
}

// serveFake serves the page of a fake pipeline with 100 streams, and its chat, until it is killed.
func serveFake(at string) error {
	f := newFake()
	f.Choose(func(r *engine.Request) (enginetest.Script, error) {
		if r.MaxTokens == 1 { // of follow
			return enginetest.Forever("x"), nil
		}
		return enginetest.Text("A fake ", "engine ", "has no ", "opinion."), nil
	})
	const streams = 100
	f.mu.Lock()
	f.stats.Running, f.stats.Waiting, f.stats.KVBlocksUsed, f.stats.KVBlocksCached = streams, 3, 640, 120
	f.stats.PrefixQueries, f.stats.PrefixHits = 5000, 1900
	for i := range streams {
		f.open = append(f.open, engine.Running{ID: uint64(i + 1), Name: fmt.Sprint("req_", i), Phase: engine.Decoding, Prompt: 200, Most: 4000})
	}
	f.mu.Unlock()
	go func() {
		for now := trace.Now(); ; {
			now = f.step(now, int64(14*time.Millisecond), streams)
			f.mu.Lock()
			for i := range f.open {
				r := &f.open[i]
				r.Generated++
				r.Since, r.ToFirst, r.PerToken = time.Duration(now), 80*time.Millisecond, 15*time.Millisecond
			}
			f.mu.Unlock()
			time.Sleep(time.Duration(now - trace.Now()))
		}
	}()
	for range streams {
		go follow(f.Engine)
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	opt := server.Options{}
	if key := os.Getenv(fakeKey); key != "" {
		opt.Keys = []server.KeyHash{server.HashKey(key)}
	}
	srv := server.New(f, opt)
	responses.New(f, responses.Options{Owner: srv.Owner, AllowOrigin: srv.OriginAllowed, ReadBody: srv.ReadBody, Acquire: srv.Acquire}).Mount(srv.Route)
	New(f, Options{Owner: srv.Owner, AllowOrigin: srv.OriginAllowed, Draining: srv.Draining()}).Mount(srv.Open, srv.Route)
	fmt.Printf("http://%s\n", l.Addr())
	return srv.Serve(l)
}
