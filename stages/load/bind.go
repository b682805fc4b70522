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
		for _, t := range cfg.Expected() {
			if _, ok := set.Tensor(t.Name); !ok && t.Part == model.Experts {
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
func (b *binder) follow(o *Options) {
	given := !b.precision.Experts.Zero() && b.card == nil
	for _, n := range weightNeeds(b.cfg, o) {
		if n.Part != Experts || !given && b.routed == b.dev {
			b.all = plus(b.all, n.Bytes)
		}
	}
	b.tell = func(done, all int64) { o.Progress("load weights", done, all) }
	b.bound(0)
}

// bound tells that n more bytes are on the device.
func (b *binder) bound(n int64) {
	if b.tell != nil {
		b.done = min(b.all, b.done+n)
		b.tell(b.done, b.all)
	}
}

// mat binds a tensor [n] as [1, n], [n, k] as it is.
func (b *binder) mat(name string) device.Mat { return b.on(b.dev, name) }

// on is mat on a device.
func (b *binder) on(dev device.Device, name string) device.Mat {
	if b.err != nil {
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
// packed: BF16 if its config names none.
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

// roles binds the tensors of one layer by role (attention.Binder).
type roles struct {
	*binder
	layer   int
	spec    *model.LayerSpec
	tensors map[string]model.TensorSpec // by role, but for those of routed experts
}

func (b *binder) roles(layer int) *roles {
	r := &roles{b, layer, &b.cfg.Layers[layer], map[string]model.TensorSpec{}}
	for _, list := range [][]model.TensorSpec{r.spec.Mixer.Tensors(b.cfg.Hidden), r.spec.FFN.Tensors(b.cfg.Hidden)} {
		for _, t := range list {
			r.tensors[t.Role] = t
		}
	}
	return r
}

// key names a matrix of the layer in the store.
func (r *roles) key(what string) string { return fmt.Sprintf("layer.%d.%s", r.layer, what) }

// format is what a tensor is kept in.
func (r *roles) format(role string) tensor.Format { return r.precision.of(r.tensors[role].Part) }

// Vector implements attention.Binder.
func (r *roles) Vector(role string) device.Mat { return r.mat(r.spec.Name(role)) }

// Weight implements attention.Binder.
func (r *roles) Weight(role string) device.Weight {
	return r.weight(r.key(role), r.spec.Name(role), r.format(role))
}

// Joint implements attention.Binder: packed weights are joint, and all weights of an accelerator.
func (r *roles) Joint(name string, of ...string) (device.Weight, bool) {
	f, names := r.format(of[0]), make([]string, len(of))
	if f.Zero() && r.card == nil {
		return device.Weight{}, false
	}
	for i, role := range of {
		names[i] = r.spec.Name(role)
	}
	return r.joint(r.key(name), f, names...), true
}

// KVB implements attention.Binder.
func (r *roles) KVB(role string, heads, nope, v, rank int) device.KVB {
	return r.kvB(r.key(role), r.spec.Name(role), r.format(role), heads, nope, v, rank)
}

// network binds the network whose roles start with prefix, called what in the store; none
// if the layer has none.
func (r *roles) network(what, prefix string) device.FFN {
	if _, ok := r.tensors[prefix+"gate"]; !ok {
		return device.FFN{}
	}
	return r.ffn(r.key(what), r.spec.FFNNames(prefix), r.format(prefix+"gate"))
}

// layer binds the weights of layer i.
func (b *binder) layer(i int) group.Layer {
	r, p := b.roles(i), b.precision
	block, err := attention.Bind(r.spec.Mixer, r)
	if b.err == nil {
		b.err = err
	}
	l := group.Layer{
		InputNorm: r.Vector("input_norm"),
		PostNorm:  r.Vector("post_norm"),
		Attention: block,
		Dense:     r.network("dense", ""),
	}
	if !b.cfg.MoELayer(i) {
		return l
	}
	l.Router = route.Stage{Gate: device.Weight{F: r.Vector("router")}, Params: b.cfg.MoE.Router}
	l.Bank.Shared = r.network("shared", "shared.")
	if b.cfg.MoE.SharedGate {
		l.Bank.Gate = r.Vector("shared_gate")
	}
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
	case !p.Experts.Zero() && b.experts == nil:
		return l // nobody computes them but the accelerator
	case !p.Experts.Zero():
		l.Bank.Integers = b.bank(i)
		return l
	}
	l.Bank.Routed = make([]device.Expert, b.cfg.MoE.Experts)
	for e := range l.Bank.Routed {
		l.Bank.Routed[e] = b.expert(b.routed, b.cfg.ExpertNames(i, e))
	}
	return l
}
