package load

import (
	"fmt"
	"maps"
	"slices"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights"
)

// Of returns the format of a tensor of a part whose format is f. It is f, except that tensor.Native stands
// for the format in the files and tensor.Mixed for INT4 or INT8.
func Of(cfg *model.Config, f tensor.Format, name string) tensor.Format {
	switch f.Encoding {
	case tensor.Native:
		return cfg.Native[name]
	case tensor.Mixed:
		return cfg.Mixed[name].By(f.Group)
	}
	return f
}

// format returns the format of a tensor of a part.
func (p Precision) format(cfg *model.Config, part model.Part, name string) tensor.Format {
	return Of(cfg, p.of(part), name)
}

// mixedBits is the most bits of a weight in the files, scales included, that becomes INT4: Q4_1 has 5.
const mixedBits = 5

// mixed returns what tensor.Mixed stands for in each tensor of the routed experts: INT4, or INT8 for
// plain numbers, for encodings of more than mixedBits, for MXFP4, whose values INT4 does not have, and
// for both gate and up if one of them needs it.
func mixed(cfg *model.Config, set *weights.Set) map[string]*tensor.Encoding {
	all := map[string]*tensor.Encoding{}
	encoding := func(names ...string) {
		kept := tensor.INT4
		for _, name := range names {
			t, ok := set.Tensor(name)
			if !ok || !small(t) {
				kept = tensor.INT8
			}
		}
		for _, name := range names {
			all[name] = kept
		}
	}
	for i := range cfg.Layers {
		for e := 0; cfg.MoELayer(i) && e < cfg.MoE.Experts; e++ {
			n := cfg.ExpertNames(i, e)
			encoding(n.Gate, n.Up)
			encoding(n.Down)
		}
	}
	return all
}

// small reports whether INT4 suits a tensor.
func small(t weights.Tensor) bool {
	if t.Coded == nil || t.Coded.Encoding() == tensor.MXFP4.Name() {
		return false
	}
	bits, values := 0, 1
	for _, piece := range t.Coded.Stored() {
		bits += 8 * len(piece)
	}
	for _, n := range t.Shape {
		values *= n
	}
	return bits <= mixedBits*values
}

// native returns what tensor.Native stands for in each tensor of the model. An encoding that kernels
// multiply stays as it is. The format is Q8_0 for other encodings, for kv_b_proj, because one half of it
// is transposed, for gate and up of a network if their encodings differ, and for plain numbers of
// networks. Tensors that are not in the map stay plain numbers.
func native(cfg *model.Config, set *weights.Set) map[string]tensor.Format {
	all, q8 := map[string]tensor.Format{}, tensor.Q8_0.By(tensor.BlockGroup)
	network := func(p model.Part) bool { return p == model.Experts || p == model.Shared || p == model.DenseFFN }
	for _, x := range cfg.Expected() {
		part := x.Part
		if part == model.Embedding && cfg.TieEmbed {
			part = model.Head
		}
		t, ok := set.Tensor(x.Name)
		if !ok || x.F32 || len(t.Shape) != 2 || !packable(part) {
			continue
		}
		switch {
		case t.Coded != nil && part != model.KVB:
			all[x.Name] = q8
			if f := weights.FormatOf(t); !f.Zero() {
				all[x.Name] = f
			}
		case t.Coded != nil || network(part):
			all[x.Name] = q8
		}
	}
	same := func(n model.FFNNames) {
		if all[n.Gate] != all[n.Up] {
			all[n.Gate], all[n.Up] = q8, q8
		}
	}
	for i := range cfg.Layers {
		if !cfg.MoELayer(i) {
			same(cfg.Layers[i].FFNNames(""))
			continue
		}
		if cfg.MoE.SharedFF > 0 {
			same(cfg.Layers[i].FFNNames("shared."))
		}
		for e := range cfg.MoE.Experts {
			same(cfg.ExpertNames(i, e))
		}
	}
	return all
}

// native reports whether a part is multiplied as the files have it.
func (p Precision) native() bool {
	return slices.ContainsFunc(p.Parts(), func(x PartFormat) bool { return x.Format.Encoding == tensor.Native })
}

// packable reports whether a part may have a format.
func packable(p model.Part) bool {
	return slices.ContainsFunc(Precision{}.Parts(), func(x PartFormat) bool { return x.Part == p })
}

// Converted says, for people, which encodings of the files become another format with tensor.Native or
// tensor.Mixed: "q5_0 as q8_0: 12 tensors".
func Converted(cfg *model.Config, set *weights.Set, p Precision) (lines []string) {
	tensors := map[string]int{}
	for _, x := range cfg.Expected() {
		t, ok := set.Tensor(x.Name)
		f := p.format(cfg, x.Part, x.Name)
		if !ok || !p.of(x.Part).PerTensor() || f.Zero() {
			continue
		}
		from := t.DType.String()
		if t.Coded != nil {
			from = t.Coded.Encoding()
		}
		if from != f.Name() && !f.Stored() { // blocks are never made of something else
			tensors[fmt.Sprintf("%s as %s", from, f.Name())]++
		}
	}
	for _, what := range slices.Sorted(maps.Keys(tensors)) {
		lines = append(lines, fmt.Sprintf("%s: %s", what, count(tensors[what], "tensor")))
	}
	return lines
}

// native reports whether routed experts have a format of each tensor.
func (o *Options) native() bool {
	return o.Precision.Experts.PerTensor() && o.Experts == nil && o.Packed == nil && o.Quantized == nil
}

// native is Options.native for a device that computes on host memory.
func (b *binder) native() bool {
	return b.precision.Experts.PerTensor() && b.experts == nil && b.card == nil
}

// nativeBank returns the routed experts of a layer, each tensor in its format, for a device that computes
// on host memory. If the load is for an accelerator, that is the host's device beside it.
func (b *binder) nativeBank(layer int) []device.QExpert {
	list := make([]device.QExpert, b.cfg.MoE.Experts)
	host := *b
	if host.card != nil {
		host.card, host.dev, host.precision.kind = nil, b.routed, tensor.CPU
	}
	for e := range list {
		n := b.cfg.ExpertNames(layer, e)
		list[e] = host.ffn(fmt.Sprintf("experts.%d.%d", layer, e), n, model.Experts, b.own).Q
		if host.err == nil {
			list[e].Extra = host.extraBeside(list[e].W13.Values, n)
		}
	}
	b.err, b.done = host.err, host.done
	return list
}

// nativeSlot returns the layout of a slot for a layer's experts as blocks of the files.
func nativeSlot(cfg *model.Config, layer int) (*slot, error) {
	n := cfg.ExpertNames(layer, 0)
	w13, w2, err := cfg.Native[n.Gate].NetworkWith(cfg.Native[n.Down], tensor.GPU, cfg.Hidden, cfg.MoE.FF)
	if err != nil {
		return nil, err
	}
	return packedSlot(cfg, w13, w2), nil
}

// nativeStep returns the size of a slot that has room for every expert of the model.
func nativeStep(cfg *model.Config) (most int, err error) {
	for layer := range cfg.Layers {
		if !cfg.MoELayer(layer) {
			continue
		}
		x, err := nativeSlot(cfg, layer)
		if err != nil {
			return 0, fmt.Errorf("layer %d: %w", layer, err)
		}
		most = max(most, x.bytes)
	}
	return most, nil
}

// nativeSlots returns slots for experts as blocks of the files. Encodings may differ from layer to layer.
func (b *binder) nativeSlots() *Slots {
	step, err := nativeStep(b.cfg)
	if err != nil {
		b.err = fmt.Errorf("load: %w", err)
		return nil
	}
	cfg := b.cfg
	return &Slots{Step: step, lay: func(layer int) (*slot, error) { return nativeSlot(cfg, layer) }, put: b.putPacked}
}
