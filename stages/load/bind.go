package load

import (
	"fmt"
	"maps"
	"slices"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/attention"
	"krater/stages/group"
	"krater/stages/model"
	"krater/stages/route"
	"krater/stages/weights"
)

// checkTensors compares the names and shapes of set with what cfg implies; given
// says that the routed experts come from elsewhere.
func checkTensors(cfg *model.Config, set *weights.Set, given bool) error {
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
	if t.DType != tensor.BF16 && t.DType != tensor.F32 {
		b.err = fmt.Errorf("load: %s is %s: only BF16 and F32 weights can be used", name, t.DType)
		return device.Mat{}
	}
	rows, cols := 1, t.Shape[0]
	if len(t.Shape) == 2 {
		rows, cols = t.Shape[0], t.Shape[1]
	}
	buf, err := dev.Wrap(t.Data)
	if err != nil {
		b.err = fmt.Errorf("load: %s: %w", name, err)
		return device.Mat{}
	}
	b.parts.bufs = append(b.parts.bufs, buf)
	b.parts.WeightBytes += int64(len(t.Data))
	if dev == b.dev {
		b.bound(int64(len(t.Data)))
	}
	return device.NewMat(buf, t.DType, rows, cols)
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
