package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/engine"
	"krater/actors/placement"
	"krater/kernels/cpu"
	"krater/kernels/hostsim"
	"krater/kernels/tensor"
	"krater/models"
	"krater/scheduler"
	"krater/scheduler/heat"
	"krater/scheduler/planner/rates"
	"krater/stages"
	"krater/stages/expert"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/synth"
	"krater/stages/text/chat"
	"krater/stages/text/tokenizer"
	"krater/stages/weights"
	"krater/stages/weights/cache"
)

// source is a model's files, from a folder or from the binary itself.
type source struct {
	name  string
	dir   string // "": embedded
	files fs.FS  // everything but the weights
	open  func() (*weights.Set, error)
	synth *synth.Model                 // instead of open: its weights are made, not read
	seen  map[string][sha256.Size]byte // of files read, by name
}

// openSource finds the model without reading its weights.
func openSource(dir string) (*source, error) {
	if dir == "" {
		files, err := models.Default()
		if err != nil {
			return nil, err
		}
		return &source{name: "krater-tiny", files: files, open: func() (*weights.Set, error) { return weights.FromBytes(files.Weights()) }}, nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	return &source{name: filepath.Base(abs), dir: abs, files: os.DirFS(abs), open: func() (*weights.Set, error) { return weights.Open(abs) }}, nil
}

// fileMaxBytes bounds the JSON files of a model; the largest real tokenizer.json
// has 33 MB.
const fileMaxBytes = 256 << 20

// read gives a file's bytes; optional ones may be absent.
func (s *source) read(name string, optional bool) ([]byte, error) {
	info, err := fs.Stat(s.files, name)
	if optional && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("model %s: there is no %s in %s: a model's folder has config.json, safetensors, tokenizer.json and tokenizer_config.json", s.name, name, s.dir)
	}
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", s.name, err)
	}
	if info.Size() > fileMaxBytes {
		return nil, fmt.Errorf("model %s: %s has %d bytes, over the limit of %d", s.name, name, info.Size(), fileMaxBytes)
	}
	data, err := fs.ReadFile(s.files, name)
	if err == nil {
		if s.seen == nil {
			s.seen = map[string][sha256.Size]byte{}
		}
		s.seen[name] = sha256.Sum256(data)
	}
	return data, err
}

// config reads config.json and generation_config.json.
func (s *source) config() (*model.Config, model.Generation, error) {
	data, err := s.read("config.json", false)
	if err != nil {
		return nil, model.Generation{}, err
	}
	cfg, err := model.Parse(data)
	if err != nil {
		return nil, model.Generation{}, fmt.Errorf("model %s: config.json: %w", s.name, err)
	}
	gen := model.DefaultGeneration()
	if data, err = s.read("generation_config.json", true); err != nil {
		return nil, gen, err
	}
	if data != nil {
		if gen, err = model.ParseGeneration(data); err != nil {
			return nil, gen, fmt.Errorf("model %s: generation_config.json: %w", s.name, err)
		}
	}
	return cfg, gen, nil
}

// tokenizer reads tokenizer.json and, where there is one, tokenizer_config.json.
func (s *source) tokenizer() (*tokenizer.Tokenizer, []byte, error) {
	data, err := s.read("tokenizer.json", false)
	if err != nil {
		return nil, nil, err
	}
	config, err := s.read("tokenizer_config.json", true)
	if err != nil {
		return nil, nil, err
	}
	tok, err := tokenizer.Parse(data, config)
	if err != nil {
		return nil, nil, fmt.Errorf("model %s: tokenizer.json: %w", s.name, err)
	}
	return tok, config, nil
}

// session is a model loaded on a device.
type session struct {
	src   *source
	cfg   *model.Config
	gen   model.Generation
	dev   *cpu.Device
	set   *weights.Set
	parts *load.Parts
	look  *outlook
	sim   *hostsim.Device      // the rank's, nil: the processor or card
	rates hostsim.Rates        // of it; zero: nothing takes time
	card  card                 // the GPU that the layers are on, if they are
	place *placement.Placement // of its experts

	experts   *cache.Cache   // nil: as the files hold them, or placed
	placed    *expert.Placed // on their nodes
	partition expert.Partition
	matrices  *cache.Matrices // the same of other weights
	made      *synth.Loaded   // a synthetic model: owns parts
	copied    int64           // bytes of weights read into memory of the device

	heatSample int         // as in actors.Options
	heat       *heat.Map   // of --heat-file, as it was read; nil: none
	keeper     *heatKeeper // of that file; nil: none

	// wrap, if set, is what stands between the stages and the device.
	wrap    func(*cpu.Device) load.Device
	wrapped load.Device
}

// limits are the sizes a session is loaded for; zero fields come from the flags.
type limits struct {
	logitRows int // rows with logits a step; 0: one a sequence
	kv        tensor.DType
	card      int64 // memory of the GPU that may be used
	cardName  string
	cardBytes int64                      // of memory that the GPU has, whoever has it
	heat      [][]uint32                 // counts of routers, [layer][expert], by which strategies are chosen
	measure   func(bits int) *rates.File // finds out what is not kept of this machine and its card; nil: nobody does
	whole     bool                       // every part as its file holds it, unless a flag says otherwise
}

// newSession loads a model for the flags, unless the memory plan does not fit.
func newSession(e *env, dir string, f *engineFlags, l limits) (*session, error) {
	src, err := openSource(dir)
	if err != nil {
		return nil, err
	}
	return newSourceSession(e, src, f, l)
}

// newSourceSession is newSession of a model that was found.
func newSourceSession(e *env, src *source, f *engineFlags, l limits) (*session, error) {
	s, err := prepareSource(e, src, f, l)
	if err != nil {
		return nil, err
	}
	if !s.look.plan.Fits() {
		fmt.Fprintf(e.err, "krater: going on with --force: %v\n", s.look.plan.Check())
	}
	if s.look.foreseen != nil && s.look.foreseen.line != "" {
		fmt.Fprintln(e.err, "krater:", s.look.foreseen.line)
	}
	if err := s.load(context.Background(), f, reportOn(e.err)); err != nil {
		return nil, err
	}
	return s, nil
}

// prepare finds a model and plans its memory. A plan that does not fit is an
// error unless forced.
func prepare(e *env, dir string, f *engineFlags, l limits) (*session, error) {
	src, err := openSource(dir)
	if err != nil {
		return nil, err
	}
	return prepareSource(e, src, f, l)
}

// prepareSource plans the memory of a model that was found.
func prepareSource(e *env, src *source, f *engineFlags, l limits) (*session, error) {
	s := &session{src: src}
	var err error
	if s.cfg, s.gen, err = src.config(); err != nil {
		return nil, err
	}
	if s.card, err = f.settle(e.err); err != nil {
		return nil, err
	}
	if s.card != nil {
		l.card, l.cardName, l.cardBytes = s.card.Memory().Total, s.card.Describe(), s.card.Capacity()
		apart := func(work func()) { err = s.lend(e, f, work) }
		l.measure = func(bits int) *rates.File { return f.measureOnce(e, l.cardName, l.cardBytes, bits, apart) }
	}
	look, lookErr := src.look(s.cfg, f, l, e.here())
	if s.look = look; err == nil {
		err = lookErr
	}
	if err == nil {
		err = s.look.refusal(f.Force)
	}
	if err != nil {
		s.closeRank()
		return nil, fmt.Errorf("model %s: %w", src.name, err)
	}
	return s, nil
}

// lend has work use the card, on which nothing is yet, as if nobody had it open.
func (s *session) lend(e *env, f *engineFlags, work func()) (err error) {
	s.closeRank()
	work()
	if s.card, err = f.settle(e.err); err == nil && s.card == nil {
		err = fmt.Errorf("--device cuda: %w any more", errNoCard)
	}
	return err
}

// load puts a prepared model on its device. After an error the session is
// closed.
func (s *session) load(ctx context.Context, f *engineFlags, r reporter) error {
	var err error
	if err = s.openDevice(f); err != nil {
		return err
	}
	o := s.look.options
	if err := s.openRank(f); err != nil {
		s.Close()
		return err
	}
	if s.src.synth != nil {
		if err := s.make(f, o, r); err != nil {
			return err
		}
		return s.keepBlocks(r)
	}
	if s.set, err = s.src.open(); err == nil {
		err = s.integersOnly(f, r)
	}
	if err == nil {
		err = s.openIntegers(ctx, f, &o, r)
	}
	switch {
	case err != nil:
	case s.card != nil:
		err = s.loadOnCard(f, o, r)
	case s.sim != nil:
		err = s.loadOnRank(f, o, r)
	default:
		s.parts, err = load.Model(s.operators(), s.cfg, s.set, o)
	}
	if err != nil {
		s.Close()
		return fmt.Errorf("model %s: %w", s.src.name, err)
	}
	s.sealIntegers(r)
	return s.keepBlocks(r)
}

// keepBlocks makes room for KV blocks in host memory. After an error the session is closed.
func (s *session) keepBlocks(r reporter) error {
	if s.parts.Limits.HostBlocks == 0 {
		return nil
	}
	for _, g := range s.parts.Groups {
		refused, err := g.KeepBlocks(s.rank(), s.dev)
		if err != nil {
			s.Close()
			return fmt.Errorf("--kv-ram: %w", err)
		}
		if refused != nil {
			r.notice(fmt.Sprintf("--kv-ram: host memory is not pinned, copies of KV blocks are slower: %v", refused))
		}
	}
	return nil
}

// make puts a synthetic model on the device. After an error the session is closed.
func (s *session) make(f *engineFlags, o load.Options, r reporter) error {
	var err error
	switch {
	case s.card != nil:
		if !s.look.resident {
			o.Routed = s.dev
		}
		s.made, err = s.src.synth.LoadCard(s.card, s.dev, o, s.hostSpec(), f.threads())
	case s.sim != nil:
		s.made, err = s.src.synth.LoadBeside(s.sim, s.dev, o, f.threads())
	default:
		s.made, err = s.src.synth.Load(s.operators(), o, f.threads())
	}
	if err != nil {
		s.Close()
		return err
	}
	s.parts = s.made.Parts
	s.copied = s.parts.WeightBytes
	if s.sim != nil || s.card != nil && !s.look.resident {
		if err = s.placeOnRank(f, r); err != nil {
			s.Close()
		}
	}
	return err
}

// operators is the device as the stages see it.
func (s *session) operators() load.Device {
	if s.wrapped == nil {
		s.wrapped = s.dev
		if s.wrap != nil {
			s.wrapped = s.wrap(s.dev)
		}
	}
	return s.wrapped
}

// Close frees the model. It may be called again.
func (s *session) Close() {
	if s.place != nil {
		s.place.Close()
	}
	switch {
	case s.made != nil:
		s.made.Close()
	case s.parts != nil:
		s.parts.Close()
	}
	if s.experts != nil {
		s.experts.Close()
	}
	if s.placed != nil {
		s.placed.Close()
	}
	if s.matrices != nil {
		s.matrices.Close()
	}
	if s.set != nil {
		s.set.Close()
	}
	s.closeRank()
	if s.dev != nil {
		s.dev.Close()
	}
	s.placed = nil
	s.made, s.parts, s.experts, s.matrices, s.set, s.dev = nil, nil, nil, nil, nil, nil
}

// loadOptions turns flags into the sizes of a load; free is the memory that is
// available, 0 if unknown.
func loadOptions(cfg *model.Config, f *engineFlags, l limits, free int64) (load.Options, error) {
	kv := l.kv
	if kv == tensor.Invalid {
		kv = kvTypes[f.KVDType]
	}
	switch {
	case f.MaxBatchTokens != 0 && f.MaxBatchTokens < f.MaxSeqs:
		return load.Options{}, fmt.Errorf("--max-batch-tokens %d: smaller than --max-seqs %d", f.MaxBatchTokens, f.MaxSeqs)
	case f.LayerGroups > cfg.Layers:
		return load.Options{}, fmt.Errorf("--layer-groups %d: the model has %d layers", f.LayerGroups, cfg.Layers)
	}
	tokens := f.MaxBatchTokens
	if tokens == 0 {
		tokens = f.PrefillChunk + f.MaxSeqs
	}
	blocks, err := kvBlocks(cfg, f, kv, free)
	if err != nil {
		return load.Options{}, err
	}
	kept, err := hostBlocks(cfg, f, kv)
	if err != nil {
		return load.Options{}, err
	}
	precision, err := f.precision(cfg, l.whole, f.onCard())
	if err != nil {
		return load.Options{}, err
	}
	window := 0
	if f.pass(l) > f.PrefillChunk {
		window, tokens = tokens, f.pass(l)+f.MaxSeqs
	}
	lanes := 1
	if f.onCard() {
		lanes = f.microBatches()
	}
	return load.Options{
		Limits:    stages.Limits{Tokens: tokens, Window: window, Lanes: lanes, Seqs: f.MaxSeqs, LogitRows: l.logitRows, Blocks: blocks, BlockTokens: f.BlockTokens, HostBlocks: kept},
		Partition: load.Even(cfg.Layers, f.LayerGroups), KVType: kv, Precision: precision, Layout: f.layout(),
	}, nil
}

// kvBlocks is the size of the KV cache in blocks.
func kvBlocks(cfg *model.Config, f *engineFlags, kv tensor.DType, free int64) (int, error) {
	block := kvBlockBytes(cfg, f.BlockTokens, kv)
	full := int64((cfg.MaxContext + f.BlockTokens - 1) / f.BlockTokens)
	if f.KVCache > 0 {
		n := int64(f.KVCache) / block
		if n < 1 {
			return 0, fmt.Errorf("--kv-cache %s: one block of %d tokens needs %d bytes", f.KVCache, f.BlockTokens, block)
		}
		return int(n), nil
	}
	n := full * int64(f.MaxSeqs)
	if free > 0 {
		n = min(n, max(full, free/4/block))
	}
	return int(n), nil
}

// hostBlocks is the size of --kv-ram in blocks.
func hostBlocks(cfg *model.Config, f *engineFlags, kv tensor.DType) (int, error) {
	if f.KVRAM == 0 {
		return 0, nil
	}
	if !f.onCard() && !f.onRank() {
		return 0, fmt.Errorf("--kv-ram %s: the KV cache of --device %s lies in host memory itself, --kv-cache makes it larger", f.KVRAM, f.Device)
	}
	n := int64(f.KVRAM) / kvBlockBytes(cfg, f.BlockTokens, kv)
	if n < 1 {
		return 0, fmt.Errorf("--kv-ram %s: one block of %d tokens needs %d bytes", f.KVRAM, f.BlockTokens, kvBlockBytes(cfg, f.BlockTokens, kv))
	}
	return int(min(n, int64(math.MaxInt32/f.BlockTokens))), nil
}

// kvBlockBytes is the size of a KV block in all layers.
func kvBlockBytes(cfg *model.Config, tokens int, kv tensor.DType) int64 {
	a := cfg.Attention
	row := int64(a.KVWidth()) * int64(kv.Size())
	if kv == tensor.I8 {
		row += 4 * int64(a.KVWidth()/a.KVGroup())
	}
	return int64(tokens) * row * int64(cfg.Layers)
}

// pipeline starts the actors over a loaded model.
func (s *session) pipeline(f *engineFlags, log zerolog.Logger) (*actors.Pipeline, error) {
	groups, err := actors.Cut(s.cfg.Layers, f.LayerGroups)
	if err != nil {
		return nil, err
	}
	chunk, share := f.PrefillChunk, f.PrefillShare
	if lim := s.parts.Limits; lim.Window < lim.Tokens {
		// What a pass copies is paid by all its prompts, so as many as there are go along.
		chunk, share = lim.Tokens-f.MaxSeqs, lim.Tokens-f.MaxSeqs
	}
	return actors.Start(s.rank(), s.parts, actors.Options{
		Blueprint: actors.Blueprint{Groups: groups, Pools: s.look.pools, MicroBatches: f.microBatches()},
		Scheduler: scheduler.Config{
			PrefillChunk: chunk, PrefillShare: share, MaxQueue: f.MaxQueue, NoReuse: !f.PrefixCache, Aging: f.Aging,
		},
		Log: log, InlineBelow: f.InlineBelow, Partition: s.partition, Placement: s.place, HeatSample: s.heatSample,
		ReuseAnswers: f.ReuseAnswers, Invariant: f.BatchInvariant,
	})
}

// gateway opens a pipeline to requests.
func (s *session) gateway(f *engineFlags, p *actors.Pipeline, id string) (*actors.Gateway, error) {
	tok, config, err := s.src.tokenizer()
	if err != nil {
		return nil, err
	}
	template, err := s.src.template(tok, config)
	if err != nil {
		return nil, err
	}
	if id == "" {
		id = s.src.name
	}
	return actors.NewGateway(p, actors.GatewayOptions{
		ID: id, Created: time.Now(), Tokenizer: tok, Template: template, EOS: s.cfg.StopIDs(s.gen), Vocab: s.cfg.Vocab,
		Identity: s.identity(), ShareKV: f.SharePrefixes,
		Defaults: engine.Sampling{
			Temperature: s.gen.Temperature, TopP: s.gen.TopP, TopK: s.gen.TopK, MinP: s.gen.MinP, RepetitionPenalty: s.gen.RepetitionPenalty,
		},
	}), nil
}

// identity is the hash of what decides, beside its tokens, what a prompt leaves in the KV
// cache: the model and how its parts are kept, tokenizer and template, as far as they were read.
func (s *session) identity() [sha256.Size]byte {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00%+v\x00%s", s.src.name, s.src.dir, s.look.options.Precision, s.look.options.KVType)
	for _, name := range slices.Sorted(maps.Keys(s.src.seen)) {
		fmt.Fprintf(h, "\x00%s\x00%x", name, s.src.seen[name])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// template reads the model's chat template; nil when it has none.
func (s *source) template(tok *tokenizer.Tokenizer, config []byte) (*chat.Template, error) {
	extra, err := s.read("chat_template.jinja", true)
	if err != nil {
		return nil, err
	}
	t, err := chat.FromConfig(config, extra, tok.AddedTexts())
	if err != nil {
		return nil, fmt.Errorf("model %s: chat template: %w", s.name, err)
	}
	return t, nil
}
