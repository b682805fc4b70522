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
	"krater/stages/embed"
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
	own       Store // of routed experts
	experts   func(layer int) []device.QExpert
	routed    device.Device // of routed experts that are not integers
	tell      func(done, all int64)
	done, all int64 // bytes of what is put on dev, for tell
	card      *card // nil: the device computes on host memory
}

// follow tells progress of the weights that come to the device. Integers that a cache gives are there already.
func (b *binder) follow(o *Options) {
	given := !b.precision.Experts.Zero() && b.card == nil && !b.native()
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

// on is mat on a device, of a type that also has the values of other tensors.
func (b *binder) on(dev device.Device, name string, names ...string) device.Mat {
	kept, err := b.kept(name, names...)
	if err != nil && b.err == nil {
		b.err = fmt.Errorf("load: %w", err)
	}
	return b.as(dev, name, kept)
}

// as is mat on a device, of the type kept.
func (b *binder) as(dev device.Device, name string, kept tensor.DType) device.Mat {
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
	var buf device.Buffer
	var err error
	switch {
	case t.Coded == nil && kept == t.DType:
		buf, err = dev.Wrap(t.Data)
	default:
		buf, err = b.decoded(dev, t, kept)
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

// kept returns the type that several tensors are loaded as: the smallest that has all their values.
func (b *binder) kept(name string, names ...string) (tensor.DType, error) {
	t, ok := b.set.Tensor(name)
	if !ok {
		return t.DType, fmt.Errorf("%w: %s", model.ErrTensorMissing, name)
	}
	kept, err := floatType(t.DType)
	if err != nil {
		return kept, fmt.Errorf("%s: %w", name, err)
	}
	if len(names) > 0 {
		var other tensor.DType
		if other, err = b.kept(names[0], names[1:]...); other == tensor.F32 {
			kept = other
		}
	}
	return kept, err
}

// floatType returns the type that weights of a type are multiplied in: no operator takes F16, and
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

// KeptType returns the type that the weights of a part have once they are loaded, where they are not
// packed: BF16 if nothing names one.
func KeptType(cfg *model.Config, part model.Part) tensor.DType {
	if t, ok := cfg.Types[part]; ok {
		return t
	}
	if cfg.DType == tensor.Invalid {
		return tensor.BF16
	}
	t, _ := floatType(cfg.DType) // a config names no other
	return t
}

// Types are the types that a model's weights are loaded as where they are not packed, for
// model.Config.Types: of each part the widest. nil if all are plain numbers. Else it also sets
// cfg.Native and cfg.Mixed.
func Types(cfg *model.Config, set *weights.Set) map[model.Part]tensor.DType {
	types, coded := map[model.Part]tensor.DType{}, false
	for _, x := range cfg.Expected() {
		t, ok := set.Tensor(x.Name)
		if !ok || x.F32 {
			continue
		}
		coded = coded || t.Coded != nil
		if kept, err := floatType(t.DType); err == nil && types[x.Part] != tensor.F32 {
			types[x.Part] = kept
		}
	}
	if !coded {
		return nil
	}
	if cfg.TieEmbed {
		types[model.Head] = types[model.Embedding]
	}
	cfg.Native, cfg.Mixed = native(cfg, set), mixed(cfg, set)
	return types
}

// decoded returns a tensor as numbers of another type in memory of dev.
func (b *binder) decoded(dev device.Device, t weights.Tensor, kept tensor.DType) (device.Buffer, error) {
	rows, width := t.Rows()
	buf, err := dev.Alloc(rows * width * kept.Size())
	if err != nil {
		return nil, err
	}
	host := buf.Host()
	if host == nil { // the device copies it
		buf.Free()
		plain := make([]byte, rows*width*kept.Size())
		if err := t.Write(plain, kept); err != nil {
			return nil, err
		}
		return dev.Wrap(plain)
	}
	if err := t.Write(host, kept); err != nil {
		buf.Free()
		return nil, err
	}
	b.parts.MadeBytes += int64(len(host))
	return buf, nil
}

// made is tensors as F32 [rows, cols], made by f of their values one after the other.
func (b *binder) made(names []string, rows, cols int, f func([]float32) []float32) device.Mat {
	return b.filled(names[0], rows, cols, func(v []float32) error {
		err := b.rows(names...).fill(v)
		if err == nil {
			copy(v, f(v))
		}
		return err
	})
}

// filled is F32 [rows, cols] that fill writes, of the tensor name.
func (b *binder) filled(name string, rows, cols int, fill func([]float32) error) device.Mat {
	values := make([]float32, rows*cols)
	if b.err != nil {
		return device.Mat{}
	}
	if err := fill(values); err != nil {
		b.err = fmt.Errorf("load: %w", err)
		return device.Mat{}
	}
	data := make([]byte, 0, 4*len(values))
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	buf, err := b.dev.Wrap(data)
	if err != nil {
		b.err = fmt.Errorf("load: %s: %w", name, err)
		return device.Mat{}
	}
	b.parts.bufs = append(b.parts.bufs, buf)
	b.parts.WeightBytes += int64(len(data))
	b.bound(int64(len(data)))
	return device.NewMat(buf, tensor.F32, rows, cols)
}

// norm returns the weight of a norm [1, n].
func (b *binder) norm(name string, n int) device.Mat {
	if !b.cfg.CentredNorms {
		return b.mat(name)
	}
	return b.made([]string{name}, 1, n, func(w []float32) []float32 {
		for i := range w {
			w[i]++
		}
		return w
	})
}

// expert binds a network. Operators want one type for gate and up.
func (b *binder) expert(dev device.Device, n model.FFNNames) device.Expert {
	return device.Expert{Gate: b.on(dev, n.Gate, n.Up), Up: b.on(dev, n.Up, n.Gate), Down: b.on(dev, n.Down)}
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
	for _, list := range [][]model.TensorSpec{r.spec.Mixer.Tensors(b.cfg.Hidden), r.spec.FFN.Tensors(b.cfg.Hidden), r.spec.Blocks(b.cfg.Hidden)} {
		for _, t := range list {
			r.tensors[t.Role] = t
		}
	}
	return r
}

// key names a matrix of the layer in the store.
func (r *roles) key(what string) string { return fmt.Sprintf("layer.%d.%s", r.layer, what) }

// format returns the format of a role's tensor.
func (r *roles) format(role string) tensor.Format {
	return r.precision.format(r.cfg, r.tensors[role].Part, r.spec.Name(role))
}

// Vector implements attention.Binder.
func (r *roles) Vector(of ...string) device.Mat {
	role := of[0]
	if len(of) > 1 {
		names, n := make([]string, len(of)), 0
		for i, role := range of {
			names[i] = r.spec.Name(role)
			n += r.tensors[role].Shape[0]
		}
		return r.filled(names[0], 1, n, r.rows(names...).fill)
	}
	if r.tensors[role].F32 {
		return r.as(r.dev, r.spec.Name(role), tensor.F32)
	}
	return r.mat(r.spec.Name(role))
}

// Norm implements attention.Binder.
func (r *roles) Norm(role string) device.Mat {
	n := r.cfg.Hidden
	if t, ok := r.tensors[role]; ok {
		n = t.Shape[0]
	}
	return r.norm(r.spec.Name(role), n)
}

// Ones implements attention.Binder.
func (r *roles) Ones(n int) device.Mat {
	return r.filled("ones", 1, n, func(v []float32) error {
		for i := range v {
			v[i] = 1
		}
		return nil
	})
}

// Made implements attention.Binder.
func (r *roles) Made(role string, rows, cols int, make func([]float32) []float32, more ...string) device.Mat {
	names := []string{r.spec.Name(role)}
	for _, x := range more {
		names = append(names, r.spec.Name(x))
	}
	return r.made(names, rows, cols, make)
}

// Weight implements attention.Binder.
func (r *roles) Weight(role string) device.Weight {
	return r.weight(r.key(role), r.spec.Name(role), r.format(role))
}

// Joint implements attention.Binder: weights packed in one format are joint, and on an accelerator all
// that have one format.
func (r *roles) Joint(name string, of ...string) (device.Weight, bool) {
	f, names := r.format(of[0]), make([]string, len(of))
	if f.Zero() && r.card == nil {
		return device.Weight{}, false
	}
	for i, role := range of {
		if names[i] = r.spec.Name(role); r.format(role) != f {
			return device.Weight{}, false // the files have them in several encodings
		}
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
	n := r.ffn(r.key(what), r.spec.FFNNames(prefix), r.tensors[prefix+"gate"].Part, r.store)
	act := r.spec.FFN.Activation()
	n.F.Act, n.Q.Act = act, act
	return n
}

// perLayer binds what makes the rows for single layers.
func (b *binder) perLayer() embed.PerLayer {
	names, width := b.cfg.Names(), b.cfg.PerLayer
	if width == 0 {
		return embed.PerLayer{}
	}
	return embed.PerLayer{Width: width, Table: b.mat(names.PerLayer), Proj: device.Weight{F: b.mat(names.PerLayerProj)},
		Norm: b.norm(names.PerLayerNorm, width), Eps: b.cfg.NormEps}
}

// others binds what belongs to neither attention nor the network.
func (r *roles) others(l *group.Layer) {
	if r.spec.NormsAfter {
		l.MixerNorm, l.FFNNorm = r.Norm("mixer_norm"), r.Norm("ffn_norm")
	}
	if r.spec.PerLayer > 0 {
		l.PerLayer = group.PerLayer{Gate: device.Weight{F: r.Vector("per_layer_gate")}, Proj: device.Weight{F: r.Vector("per_layer_proj")}, Norm: r.Norm("per_layer_norm")}
	}
	if r.spec.Scalar && r.err == nil {
		v := make([]float32, 1)
		if _, r.err = r.read(v, r.spec.Name("scalar")); r.err == nil && !(v[0] != 0 && v[0]-v[0] == 0) {
			r.err = fmt.Errorf("load: %s is %g", r.spec.Name("scalar"), v[0])
		}
		l.Scalar = v[0]
	}
}

// ownNorms binds the norms of a layer's parts; nil: it has none.
func (r *roles) ownNorms() *group.OwnNorms {
	if !r.cfg.MoE.OwnNorms {
		return nil
	}
	root := float32(math.Sqrt(float64(r.cfg.Hidden)))
	return &group.OwnNorms{
		Router: r.Made("router_norm", 1, r.cfg.Hidden, func(w []float32) []float32 {
			for i := range w {
				w[i] /= root
			}
			return w
		}),
		Expert: r.Norm("expert_norm"), Experts: r.Norm("experts_norm"), Shared: r.Norm("shared_norm"),
	}
}

// layer binds the weights of layer i.
func (b *binder) layer(i int) group.Layer {
	r, p := b.roles(i), b.precision
	block, err := attention.Bind(r.spec.Mixer, r)
	if b.err == nil {
		b.err = err
	}
	l := group.Layer{
		Mixer:     r.block("input_norm", "attn_"),
		Network:   r.block("post_norm", "mlp_"),
		Table:     r.table(),
		Attention: block,
		Dense:     r.network("dense", ""),
	}
	r.others(&l)
	if !b.cfg.MoELayer(i) {
		return l
	}
	l.Router = route.Stage{Gate: device.Weight{F: r.Vector("router")}, Params: b.cfg.MoE.Router}
	if moe := r.spec.FFN.(model.MoE); moe.Vocab > 0 {
		l.Router.Table = r.Vector("token_experts")
	} else if moe.Correction {
		l.Router.Bias = r.Vector("correction")
	}
	if b.cfg.MoE.Factors {
		l.Router.Factors = r.Vector("factors")
	}
	l.OwnNorms = r.ownNorms()
	if b.cfg.MoE.RouterBias {
		l.Router.GateBias = r.Vector("router_bias")
	}
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
	case b.native(), b.card != nil && p.Experts.Encoding == tensor.Native && b.own != nil:
		l.Bank.Integers = b.nativeBank(i)
		return l
	case !p.Experts.Zero() && b.experts == nil:
		return l // nobody computes them but the accelerator
	case !p.Experts.Zero():
		l.Bank.Integers = b.bank(i)
		return l
	}
	l.Bank.Routed = make([]device.Expert, b.cfg.MoE.Experts)
	for e := range l.Bank.Routed {
		n := b.cfg.ExpertNames(i, e)
		l.Bank.Routed[e] = b.expert(b.routed, n)
		l.Bank.Routed[e].Extra = b.extra(b.routed, n)
	}
	return l
}
