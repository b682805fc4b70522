package load

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/attention"
	"krater/stages/group"
	"krater/stages/model"
	"krater/stages/route"
	"krater/stages/weights"
)

// CheckTensors compares the names and shapes of set with what cfg implies, and reads no weight.
// If given, routed experts may be missing: they come from elsewhere.
func CheckTensors(cfg *model.Config, set *weights.Set, given bool) error {
	names := set.Names()
	absent := map[string][]int{}
	if given {
		top := cfg.Names()
		for _, t := range cfg.Expected() {
			if _, ok := set.Tensor(t.Name); !ok && partOf(t.Name, top) == Experts {
				absent[t.Name] = t.Shape
			}
		}
		names = slices.AppendSeq(slices.Clone(names), maps.Keys(absent))
	}
	return cfg.CheckTensors(names, func(name string) []int {
		if shape, ok := absent[name]; ok {
			return shape
		}
		t, _ := set.Tensor(name)
		return t.Shape
	})
}

// binder turns tensors into matrices on a device. The first error stays.
type binder struct {
	dev   device.Device
	cfg   *model.Config
	set   *weights.Set
	parts *Parts
	err   error

	precision Precision
	store     Store
	experts   func(layer int) []device.QExpert
	routed    device.Device // of routed experts that are no integers
	tell      func(done, all int64)
	done, all int64 // bytes of what is put on dev, for tell
	card      *card // nil: the device computes on host memory
}

// follow tells progress of the weights that come to the device. Integers that a cache gives are there already.
func (b *binder) follow(progress func(phase string, done, all int64)) {
	given := b.precision.Experts != 0 && b.card == nil
	for _, n := range weightNeeds(b.cfg, b.precision) {
		if n.Part != Experts || !given && b.routed == b.dev {
			b.all = plus(b.all, n.Bytes)
		}
	}
	b.tell = func(done, all int64) { progress("load weights", done, all) }
	b.bound(0)
}

// bound tells that n more bytes are on the device.
func (b *binder) bound(n int64) {
	if b.tell != nil {
		b.done = min(b.all, b.done+n)
		b.tell(b.done, b.all)
	}
}

// mat binds a tensor [n] as [1, n], [n, k] as it is. "" gives the absent
// matrix: the layer has no such tensor.
func (b *binder) mat(name string) device.Mat { return b.on(b.dev, name) }

// on is mat on a device.
func (b *binder) on(dev device.Device, name string) device.Mat {
	if name == "" || b.err != nil {
		return device.Mat{}
	}
	t, ok := b.set.Tensor(name)
	if !ok {
		b.err = fmt.Errorf("load: %w: %s", model.ErrTensorMissing, name)
		return device.Mat{}
	}
	rows, cols := 1, t.Shape[0]
	if len(t.Shape) == 2 {
		rows, cols = t.Shape[0], t.Shape[1]
	}
	kept, err := floatType(t.DType)
	var buf device.Buffer
	switch {
	case err != nil:
	case kept == t.DType:
		buf, err = dev.Wrap(t.Data)
	default:
		buf, err = b.widened(dev, t)
		b.set.Release(name)
	}
	if err != nil {
		b.err = fmt.Errorf("load: %s: %w", name, err)
		return device.Mat{}
	}
	b.parts.bufs = append(b.parts.bufs, buf)
	b.parts.WeightBytes += int64(buf.Size())
	if dev == b.dev {
		b.bound(int64(buf.Size()))
	}
	return device.NewMat(buf, kept, rows, cols)
}

// floatType is the type that weights of a type are multiplied in: no operator takes F16, and
// F32 has all its values.
func floatType(t tensor.DType) (tensor.DType, error) {
	switch t {
	case tensor.BF16, tensor.F32:
		return t, nil
	case tensor.F16:
		return tensor.F32, nil
	}
	return t, fmt.Errorf("it is %s: only BF16, F16 and F32 weights can be used", t)
}

// KeptType is the type that a model's weights have once they are loaded, where they are not
// integers: BF16 if its config names none.
func KeptType(cfg *model.Config) tensor.DType {
	if cfg.DType == tensor.Invalid {
		return tensor.BF16
	}
	t, _ := floatType(cfg.DType) // a config names no other
	return t
}

// widened is an F16 tensor as F32 in memory of dev.
func (b *binder) widened(dev device.Device, t weights.Tensor) (device.Buffer, error) {
	buf, err := dev.Alloc(2 * len(t.Data))
	if err != nil {
		return nil, err
	}
	host := buf.Host()
	if host == nil {
		buf.Free()
		return dev.Wrap(widen(make([]byte, 2*len(t.Data)), t.Data))
	}
	widen(host, t.Data)
	b.parts.MadeBytes += int64(len(host))
	return buf, nil
}

// widen writes F16 values to dst as F32.
func widen(dst, src []byte) []byte {
	le := binary.LittleEndian
	for i := range len(src) / 2 {
		le.PutUint32(dst[4*i:], math.Float32bits(tensor.F16ToF32(le.Uint16(src[2*i:]))))
	}
	return dst
}

func (b *binder) expert(dev device.Device, n model.FFNNames) device.Expert {
	return device.Expert{Gate: b.on(dev, n.Gate), Up: b.on(dev, n.Up), Down: b.on(dev, n.Down)}
}

// layer binds the weights of layer i.
func (b *binder) layer(i int) group.Layer {
	n, p, key := b.cfg.LayerNames(i), b.precision, fmt.Sprintf("layer.%d", i)
	l := group.Layer{
		InputNorm: b.mat(n.InputNorm),
		PostNorm:  b.mat(n.PostNorm),
		Attention: attention.Weights{
			QNorm: b.mat(n.QANorm), QB: b.weight(key+".q_b", n.QB, p.Attention),
			KVNorm: b.mat(n.KVNorm), KVB: b.kvB(key+".kv_b", n.KVB, p.KVB),
			O:     b.weight(key+".o", n.O, p.Attention),
			QBias: b.mat(n.QBias), KBias: b.mat(n.KBias), VBias: b.mat(n.VBias),
		},
		Dense: b.ffn(key+".dense", n.Dense, p.Dense),
	}
	if a := &l.Attention; p.Attention != 0 || b.card != nil {
		a.Joint = b.joint(key+".qkv", p.Attention, n.Q, n.QA, n.KVA, n.K, n.V)
	} else {
		a.Q, a.QA, a.KVA = b.weight("", n.Q, 0), b.weight("", n.QA, 0), b.weight("", n.KVA, 0)
		a.K, a.V = b.weight("", n.K, 0), b.weight("", n.V, 0)
	}
	if !b.cfg.MoELayer(i) {
		return l
	}
	l.Router = route.Stage{Gate: b.mat(n.Router), Params: b.cfg.MoE.Router}
	l.Bank.Shared = b.ffn(key+".shared", n.Shared, p.Shared)
	if b.card != nil && b.routed != b.dev {
		b.parts.Slots = b.slots(i)
		l.Bank.Away = b.cfg.MoE.Experts
	}
	switch {
	case b.err != nil:
		return l
	case b.card != nil && b.routed == b.dev:
		l.Bank.Here = b.bankHere(i)
		return l
	case p.Experts != 0 && b.experts == nil:
		return l // nobody computes them but the accelerator
	case p.Experts != 0:
		l.Bank.Integers = b.bank(i)
		return l
	}
	l.Bank.Routed = make([]device.Expert, b.cfg.MoE.Experts)
	for e := range l.Bank.Routed {
		l.Bank.Routed[e] = b.expert(b.routed, b.cfg.ExpertNames(i, e))
	}
	return l
}
