package cache

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"

	"krater/stages/model"
	"krater/stages/weights"
)

// Fingerprint identifies what a cache was made from.
type Fingerprint [32]byte

// String returns the first 16 digits.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:8]) }

const (
	// quantiser is raised whenever the integers made from the same weights change.
	quantiser = 1
	// At most this many tensors are sampled; each is a page read at every start.
	samples     = 4096
	sampleBytes = 64
)

// FingerprintOf covers: the quantiser's version; the bytes of config.json; name,
// type, encoding and shape of every routed expert's tensors; and 64 bytes from the
// middle of what is stored of up to 4,096 of these tensors, evenly spread. Other weights of the same
// shapes (another checkpoint, a fine-tuned model) differ in these bytes; not
// noticed is a change of single values elsewhere. Hashing every byte would read
// the whole model at every start, which the cache is there to avoid.
//
// A set without any routed expert is that of a model whose experts exist as
// integers only (a synthetic one): then config.json alone tells which they are.
func FingerprintOf(config []byte, cfg *model.Config, set *weights.Set) (Fingerprint, error) {
	all := expertTensors(cfg)
	if !slices.ContainsFunc(all, func(name string) bool { _, ok := set.Tensor(name); return ok }) {
		all = nil
	}
	return fingerprint(config, set, all)
}

// MatrixFingerprintOf is like FingerprintOf, for all tensors except those of routed experts.
func MatrixFingerprintOf(config []byte, cfg *model.Config, set *weights.Set) (Fingerprint, error) {
	experts := map[string]bool{}
	for _, name := range expertTensors(cfg) {
		experts[name] = true
	}
	var list []string
	for _, name := range set.Names() {
		if !experts[name] {
			list = append(list, name)
		}
	}
	slices.Sort(list) // the files' cut does not matter
	return fingerprint(config, set, list)
}

// expertTensors are the names of the routed experts' tensors.
func expertTensors(cfg *model.Config) (all []string) {
	for layer := range cfg.Layers {
		if !cfg.MoELayer(layer) {
			continue
		}
		for e := range cfg.MoE.Experts {
			n := cfg.ExpertNames(layer, e)
			all = append(all, n.Gate, n.Up, n.Down)
		}
	}
	return all
}

func fingerprint(config []byte, set *weights.Set, names []string) (Fingerprint, error) {
	h := sha256.New()
	word := func(v uint64) {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], v)
		h.Write(b[:])
	}
	word(quantiser)
	word(uint64(len(config)))
	h.Write(config)
	every := max(1, (len(names)+samples-1)/samples)
	for i, name := range names {
		t, ok := set.Tensor(name)
		if !ok {
			return Fingerprint{}, fmt.Errorf("cache: %w: %s", model.ErrTensorMissing, name)
		}
		word(uint64(len(name)))
		h.Write([]byte(name))
		word(uint64(t.DType))
		if t.Coded != nil {
			word(uint64(len(t.Encoding())))
			h.Write([]byte(t.Encoding()))
		}
		word(uint64(len(t.Shape)))
		for _, n := range t.Shape {
			word(uint64(n))
		}
		if i%every == 0 {
			for _, piece := range t.Stored() {
				half := len(piece) / 2
				h.Write(piece[half:min(len(piece), half+sampleBytes)])
			}
		}
	}
	return Fingerprint(h.Sum(nil)), nil
}
