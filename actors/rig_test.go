package actors

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/hostsim"
	"krater/kernels/tensor"
	"krater/models"
	"krater/stages"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/sample"
	"krater/stages/text/tokenizer"
	"krater/stages/weights"
	"krater/stages/weights/scaled"
)

// setup says how a test's pipeline is made; zero fields have defaults.
type setup struct {
	dir       string // model folder; "": krater-tiny
	groups    int
	pools     int
	depth     int
	limits    stages.Limits
	kv        tensor.DType
	chunk     int
	share     int
	queue     int
	retries   int           // of a lost step
	noReuse   bool          // of what was computed
	inline    time.Duration // 0: never, so that small models use the pools
	log       zerolog.Logger
	faults    *faults                                         // of the device's operators; may be nil
	wrap      func(actor string, n node) node                 // around every node; may be nil
	simulated bool                                            // the device
	remote    bool                                            // ranks behind the first are elsewhere: it has both ends
	ops       func(load.Device) load.Device                   // around the operators; may be nil
	nodes     []cpu.Node                                      // of the device
	change    func(d *cpu.Device, l *loaded, o *load.Options) // how the model is loaded; may be nil
}

// rig is a running pipeline over a real model on the CPU.
type rig struct {
	*Pipeline
	*loaded
}

// loaded is a model on the CPU, which any number of pipelines may use one after
// another.
type loaded struct {
	dev   device.Device
	cfg   *model.Config
	set   *weights.Set
	bound *load.Parts
	files fs.FS
}

// placed is the model on its only rank.
func (l *loaded) placed() []load.Rank { return []load.Rank{{Device: l.dev, Parts: l.bound}} }

func newRig(t testing.TB, o setup) *rig {
	t.Helper()
	o = o.defaults()
	r := &rig{loaded: loadModel(t, o)}
	var err error
	if r.Pipeline, err = Start(r.placed(), r.options(t, o)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil && !errors.Is(err, errFatal) {
			t.Errorf("closing the pipeline: %v", err)
		}
	})
	return r
}

func (l *loaded) options(t testing.TB, o setup) Options {
	t.Helper()
	groups, err := Cut(len(l.cfg.Layers), o.groups)
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Blueprint: Blueprint{Groups: groups, Pools: o.pools, MicroBatches: o.depth},
		Policy:    Policy{PrefillChunk: o.chunk, PrefillShare: o.share, MaxQueue: o.queue, MaxRetries: o.retries, NoReuse: o.noReuse},
		Log:       o.log, InlineBelow: o.inline, wrap: o.wrap, HeatSample: 1,
	}
}

// simulated is a device over a CPU. Its streams must be closed at the end.
func simulated(t testing.TB, on *cpu.Device) *hostsim.Device {
	t.Helper()
	d, err := hostsim.New(hostsim.Options{CPU: on})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := d.Streams(); n != 0 {
			t.Errorf("%d streams are not closed", n)
		}
	})
	return d
}

func loadModel(t testing.TB, o setup) *loaded {
	t.Helper()
	r := &loaded{}
	var err error
	if o.dir == "" {
		files, err := models.Default()
		if err != nil {
			t.Skip(err)
		}
		r.files = files
		r.set, err = weights.FromBytes(files.Weights())
		if err != nil {
			t.Fatal(err)
		}
	} else {
		r.files = os.DirFS(o.dir)
		if r.set, err = scaled.Open(o.dir); err != nil {
			t.Fatal(err)
		}
	}
	data, err := fs.ReadFile(r.files, "config.json")
	if err != nil {
		t.Fatal(err)
	}
	if r.cfg, err = model.Parse(data); err != nil {
		t.Fatal(err)
	}
	// Two threads as on any machine, also where there is one core.
	processor := cpu.Options{Threads: 2}
	if o.nodes != nil {
		processor = cpu.Options{Nodes: o.nodes}
	}
	dev, err := cpu.New(processor)
	if err != nil {
		t.Fatal(err)
	}
	var ops load.Device = dev
	if o.faults != nil {
		ops = &faultyDevice{Device: dev, faults: o.faults}
	}
	if o.ops != nil {
		ops = o.ops(ops)
	}
	r.dev = dev
	if o.simulated {
		sim := simulated(t, dev)
		ops, r.dev = sim, sim
	}
	opt := load.Options{Limits: o.limits, Partition: load.Even(len(r.cfg.Layers), o.groups), KVType: o.kv}
	if o.change != nil {
		o.change(dev, r, &opt)
	}
	r.bound, err = load.Model(ops, r.cfg, r.set, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.bound.Close()
		r.set.Close()
		dev.Close()
	})
	return r
}

func (o setup) defaults() setup {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&o.groups, 1)
	def(&o.pools, 1)
	def(&o.depth, o.groups)
	def(&o.limits.Tokens, 160)
	def(&o.limits.Seqs, 8)
	def(&o.limits.Blocks, 256)
	def(&o.limits.BlockTokens, 16)
	def(&o.chunk, 64)
	def(&o.share, 64)
	def(&o.queue, 1024)
	if o.kv == tensor.Invalid {
		o.kv = tensor.F32
	}
	if o.inline == 0 {
		o.inline = -1
	}
	return o
}

// gateway opens the rig to requests.
func (r *rig) gateway(t testing.TB) *Gateway {
	t.Helper()
	return r.open(t, r.Pipeline)
}

// open opens a pipeline to requests. The goldens have no tokenizer: their tests compare ids.
func (r *loaded) open(t testing.TB, p *Pipeline) *Gateway {
	t.Helper()
	return NewGateway(p, GatewayOptions{ID: "test", EOS: r.cfg.EOS, Vocab: r.cfg.Vocab, Tokenizer: tinyTokenizer(t)})
}

// samplerOf makes the sampler of a request whose prompt is ids.
func samplerOf(t testing.TB, g *Gateway, req *engine.Request) *sample.Sequence {
	t.Helper()
	c, err := g.choices(req, req.Prompt.IDs)
	if err != nil {
		t.Fatal(err)
	}
	q, err := c.sampler(nil)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// tinyTokenizer is krater-tiny's. All tests share it, as all requests of a server do: to read it is a
// seventh of what tests with the race detector take.
func tinyTokenizer(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := readTokenizer()
	if errors.Is(err, models.ErrNoModel) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	return tok
}

var readTokenizer = sync.OnceValues(func() (*tokenizer.Tokenizer, error) {
	files, err := models.Default()
	if err != nil {
		return nil, err
	}
	return tokenizer.Load(files)
})

func golden(name string) string { return filepath.Join("..", "testdata", "goldens", name) }
