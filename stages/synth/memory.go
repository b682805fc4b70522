package synth

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights"
)

// Loaded is a model in memory of a device, made there.
type Loaded struct {
	Parts *load.Parts
	Took  []Step

	set  *weights.Set
	bufs []device.Buffer
	made func(bytes int64) // tells progress
}

// Step is a part of the making of a model.
type Step struct {
	What  string
	Bytes int64
	Took  time.Duration
}

// Close frees the model; nothing may run on it.
func (l *Loaded) Close() {
	if l.Parts != nil {
		l.Parts.Close()
	}
	l.Parts = nil
	l.free()
}

// free gives back what the weights were made in.
func (l *Loaded) free() {
	if l.set != nil {
		l.set.Close()
	}
	for _, b := range l.bufs {
		b.Free()
	}
	l.set, l.bufs = nil, nil
}

// errNoHost: memory of a device that the host cannot write.
var errNoHost = errors.New("synthetic weights are made in host memory only")

// Load makes the model on a device by the precision of o: what is kept as integers
// is made as integers. Experts and Store of o are not used. threads 0: all cores.
func (m *Model) Load(dev load.Device, o load.Options, threads int) (*Loaded, error) {
	return m.LoadBeside(dev, dev, o, threads)
}

// LoadBeside is Load for a device whose memory the host cannot write: the routed
// experts stay in memory of host, what else is made there goes over.
func (m *Model) LoadBeside(dev load.Device, host device.Device, o load.Options, threads int) (*Loaded, error) {
	l := &Loaded{}
	if err := m.load(l, dev, host, o, threads); err != nil {
		l.Close()
		return nil, fmt.Errorf("synth: %s: %w", m.Shape, err)
	}
	return l, nil
}

func (m *Model) load(l *Loaded, dev load.Device, host device.Device, o load.Options, threads int) error {
	needs, err := load.Plan(m.Config, o, load.Use{})
	if err != nil {
		return err // before memory is filled for nothing
	}
	all := int64(0)
	for _, n := range needs {
		if n.Part.Weight() {
			all += n.Bytes
		}
	}
	l.follow(o, all)
	o.Progress = nil // what load.Model binds is told of as it is made
	if err := l.step("in bfloat16", func() (int64, error) { return m.loadFloats(l, host, &o, threads) }); err != nil {
		return err
	}
	if !o.Precision.Experts.Zero() && m.Config.MoE.Experts > 0 {
		banks := make([][]device.QExpert, len(m.Config.Layers))
		o.Experts = func(layer int) []device.QExpert { return banks[layer] }
		if err := l.step("experts", func() (int64, error) { return m.loadExperts(l, host, &o, banks, o.Precision.Experts, threads) }); err != nil {
			return err
		}
	}
	store := &store{m: m, l: l, dev: dev, threads: threads, upload: device.Device(dev) != host}
	o.Store, o.Routed = store, host
	return l.step("other integers", func() (n int64, err error) {
		l.Parts, err = load.Model(dev, m.Config, l.set, o)
		return store.bytes, err
	})
}

// LoadCard makes the model on an accelerator: the same numbers as Load of equal
// precision, in its formats. host is the device on which plain weights are made before they are
// copied. With o.Routed, which must be host, experts stay there: experts for the accelerator are
// made when they are copied, and the host keeps its own in the given format (zero: none).
func (m *Model) LoadCard(dev load.Device, host device.Device, o load.Options, format tensor.Format, threads int) (*Loaded, error) {
	l := &Loaded{}
	if err := m.loadCard(l, dev, host, o, format, threads); err != nil {
		l.Close()
		return nil, fmt.Errorf("synth: %s: %w", m.Shape, err)
	}
	if o.Routed == nil {
		l.free() // the GPU has copies of what is left on the host
	}
	return l, nil
}

func (m *Model) loadCard(l *Loaded, dev load.Device, host device.Device, o load.Options, format tensor.Format, threads int) error {
	o.Layout = device.LayoutOf(dev)
	if _, err := load.Plan(m.Config, o, load.Use{}); err != nil {
		return err
	}
	all, err := m.hostBytes(o.Precision, format)
	if err != nil {
		return err
	}
	l.follow(o, all)
	if err := l.step("in bfloat16", func() (int64, error) { return m.loadFloats(l, host, &o, threads) }); err != nil {
		return err
	}
	if !format.Zero() && o.Routed != nil && m.Config.MoE.Experts > 0 {
		banks := make([][]device.QExpert, len(m.Config.Layers))
		o.Experts = func(layer int) []device.QExpert { return banks[layer] }
		if err := l.step("experts of the host", func() (int64, error) { return m.loadExperts(l, host, &o, banks, format, threads) }); err != nil {
			return err
		}
	}
	o.Quantized = func(name string, f tensor.Layout) (*tensor.Matrix, error) { return m.quantized(name, f, threads), nil }
	return l.step("copy to the GPU", func() (n int64, err error) {
		if l.Parts, err = load.Model(dev, m.Config, l.set, o); err == nil {
			n = l.Parts.WeightBytes
		}
		return n, err
	})
}

// quantized makes a matrix by the name that load gives it.
func (m *Model) quantized(name string, f tensor.Layout, threads int) *tensor.Matrix {
	std := m.matrixStd(name, f)
	if strings.HasPrefix(name, "experts.") && strings.HasSuffix(name, ".w13") {
		std = 1 / math.Sqrt(float64(f.Cols))
	}
	x := m.integers(name, f, std)
	x.skip = name == "head" && m.skew == Zipf
	return x.matrix(make([]byte, x.Bytes()), threads)
}

// follow tells the progress of all bytes that are made.
func (l *Loaded) follow(o load.Options, all int64) {
	done := int64(0)
	l.made = func(bytes int64) {
		if done += bytes; o.Progress != nil {
			o.Progress("make weights", min(done, all), all)
		}
	}
}

// hostBytes returns the number of bytes that loadCard makes in host memory: plain weights, and experts
// in the given format. With the zero format it makes no experts.
func (m *Model) hostBytes(p load.Precision, format tensor.Format) (n int64, err error) {
	for _, t := range m.Config.Expected() {
		if !p.Integers(t) {
			n += sizeOf(t)
		}
	}
	for layer := range m.Config.Layers {
		if format.Zero() || !m.Config.MoELayer(layer) {
			continue
		}
		one, err := m.expert(layer, 0, format)
		if err != nil {
			return 0, err
		}
		n += int64(one.size) * int64(m.Config.MoE.Experts)
	}
	return n, nil
}

// step times a part of the making.
func (l *Loaded) step(what string, work func() (int64, error)) error {
	start := time.Now()
	n, err := work()
	l.Took = append(l.Took, Step{what, n, time.Since(start)})
	return err
}

// alloc gives n bytes on dev that the host can write.
func (l *Loaded) alloc(dev device.Device, n int) (device.Buffer, error) {
	b, err := dev.Alloc(n)
	if err != nil {
		return nil, err
	}
	l.bufs = append(l.bufs, b)
	if b.Host() == nil {
		return nil, fmt.Errorf("%w, not in that of %s", errNoHost, dev.Name())
	}
	return b, nil
}

// loadFloats makes the tensors that are used as bfloat16 in the layers of o, and those beside the layers. Of the others
// the set has the shapes; routed experts are left out where they are integers, as their number
// is large.
func (m *Model) loadFloats(l *Loaded, dev device.Device, o *load.Options, threads int) (int64, error) {
	var list []weights.Named
	var bytes int64
	p, own := o.Precision, map[string]bool{}
	for _, t := range o.Own(m.Config).Expected() {
		own[t.Name] = true
	}
	for _, t := range m.Config.Expected() {
		x := weights.Named{Name: t.Name, Tensor: weights.Tensor{DType: tensor.BF16, Shape: t.Shape}}
		switch integer := p.Integers(t); {
		case integer && t.Part == model.Experts:
			continue
		case !integer && own[t.Name]:
			f := m.floats(t)
			b, err := l.alloc(dev, int(sizeOf(t)))
			if err != nil {
				return bytes, err
			}
			f.fill(b.Host(), 0, f.rows, threads)
			x.Data = b.Host()
			bytes += sizeOf(t)
			l.made(sizeOf(t))
		}
		list = append(list, x)
	}
	l.set = weights.Of(list, nil, nil)
	return bytes, nil
}

// loadExperts makes the routed experts of the layers of o, a buffer a layer.
func (m *Model) loadExperts(l *Loaded, dev device.Device, o *load.Options, banks [][]device.QExpert, format tensor.Format, threads int) (int64, error) {
	var bytes int64
	first, last := o.Range(m.Config)
	for layer := first; layer < last; layer++ {
		if !m.Config.MoELayer(layer) {
			continue
		}
		one, err := m.expert(layer, 0, format)
		if err != nil {
			return bytes, err
		}
		bank := make([]device.QExpert, m.Config.MoE.Experts)
		buf, err := l.alloc(dev, one.size*len(bank))
		if err != nil {
			return bytes, err
		}
		spread(len(bank), threads, func(e int) {
			x, err := m.expert(layer, e, format)
			if err != nil {
				return // the format served expert 0
			}
			x.fill(buf.Host()[e*x.size : (e+1)*x.size])
			bank[e] = x.view(buf, e*x.size)
		})
		banks[layer] = bank
		bytes += int64(one.size * len(bank))
		l.made(int64(one.size * len(bank)))
	}
	return bytes, nil
}

// store makes the other matrices that are kept as integers, a load.Store.
type store struct {
	m       *Model
	l       *Loaded
	dev     device.Device
	threads int
	upload  bool // the host cannot write to dev
	bytes   int64
}

// Matrix makes a matrix by its name in the store.
func (s *store) Matrix(name string, f tensor.Layout, _ func() (*tensor.Matrix, error)) (device.QMat, error) {
	x := s.m.integers(name, f, s.m.matrixStd(name, f))
	x.skip = name == "head" && s.m.skew == Zipf
	scaleAt := round(f.ValueBytes(), line)
	s.bytes += int64(f.ValueBytes() + f.ScaleBytes())
	s.l.made(int64(f.ValueBytes() + f.ScaleBytes()))
	if s.upload {
		raw := make([]byte, scaleAt+f.ScaleBytes())
		x.fill(raw, raw[scaleAt:], s.threads)
		b, err := s.dev.Wrap(raw)
		if err != nil {
			return device.QMat{}, err
		}
		s.l.bufs = append(s.l.bufs, b)
		return device.QMat{Layout: f, Values: b, Scales: b, ScaleAt: scaleAt}, nil
	}
	b, err := s.l.alloc(s.dev, scaleAt+f.ScaleBytes())
	if err != nil {
		return device.QMat{}, err
	}
	x.fill(b.Host(), b.Host()[scaleAt:], s.threads)
	return device.QMat{Layout: f, Values: b, Scales: b, ScaleAt: scaleAt}, nil
}

// matrixStd returns the spread of a matrix by its name in the store: "layer.3.o",
// "layer.3.kv_b.7.k" (a head of kv_b_proj the other way round), "layer.0.dense.w2".
func (m *Model) matrixStd(name string, f tensor.Layout) float64 {
	std := 1 / math.Sqrt(float64(f.Cols))
	switch {
	case strings.Contains(name, ".kv_b.") && strings.HasSuffix(name, ".k"):
		return 1 / math.Sqrt(float64(f.Rows))
	case strings.HasSuffix(name, ".o") || strings.HasSuffix(name, ".w2"):
		return std * m.outGain()
	}
	return std
}
