package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"krater/kernels/tensor"
	"krater/stages/load"
	"krater/stages/model"
)

// PrecisionOptions set the precision of each part of a model. "auto" suits the model: 4 bits for
// experts, and 8 bits or the file's type for parts that every token passes; 8 bits if the file has them encoded. A small model stays as
// its files hold it.
type PrecisionOptions struct {
	Precision         string `help:"Precision of every part: ${enum}; 'mixed' leaves it to the flag of each part. A GPU keeps kv_b_proj as the files hold it." enum:"mixed,bf16,int8,int4,int3,q8_0" default:"mixed"`
	CPUExpertBits     string `name:"cpu-expert-bits" help:"Bits of routed experts on the CPU: ${enum}." enum:"auto,3,4,8,16" default:"auto"`
	GPUExpertBits     string `name:"gpu-expert-bits" help:"Bits of routed experts on a GPU: ${enum}. With 3, 4 or 8, krater convert also writes the GPU's layout." enum:"auto,3,4,8,16" default:"auto"`
	AttentionQuant    string `help:"Precision of attention projections: ${enum}." enum:"auto,bf16,int8,int4,int3,q8_0" default:"auto"`
	KVBProjQuant      string `name:"kv-b-proj-quant" help:"Precision of kv_b_proj, for latent attention: ${enum}." enum:"auto,bf16,int8,int4,int3,q8_0" default:"auto"`
	SharedExpertQuant string `help:"Precision of shared experts: ${enum}." enum:"auto,bf16,int8,int4,int3,q8_0" default:"auto"`
	DenseMLPQuant     string `name:"dense-mlp-quant" help:"Precision of the feed-forward network of dense layers: ${enum}." enum:"auto,bf16,int8,int4,int3,q8_0" default:"auto"`
	LMHeadQuant       string `name:"lm-head-quant" help:"Precision of lm_head: ${enum}." enum:"auto,bf16,int8,int4,int3,q8_0" default:"auto"`
	ExpertFormat      string `help:"Format of routed experts: ${enum}. 'native' multiplies blocks of the files (GGUF's types, MXFP4) as they are; on a CPU parts on 'auto' follow. 'mixed' makes INT4 of tensors that have up to 5 bits a weight in the files, and INT8 of others. 'auto' on a CPU is native with experts in MXFP4, and else is as --cpu-expert-bits says." enum:"auto,native,mixed" default:"auto"`
	GGUFNative        bool   `name:"gguf-native" help:"Short for --expert-format native."`
	GroupSize         string `help:"Columns that share a scale: ${enum}; 'row' is one scale per row, 'auto' is 128, or the size in which the files have INT4 or MXFP4. A matrix whose width this does not divide takes the next smaller size that does. q8_0 always has 32, int3 has no 'row', and on the CPU all parts need one size." enum:"auto,32,64,128,row" default:"auto"`
}

// smallModel is the size in BF16 below which "auto" keeps a model as it is. The memory saved would
// not be worth the loss of quality.
const smallModel = 1 << 30

// formatOf returns the format that a value of a flag names: of bits, "3", "4" and "8" are INT3, INT4 and
// INT8, and "16" is like "bf16".
func (f *PrecisionOptions) formatOf(cfg *model.Config, choice string) (tensor.Format, error) {
	switch choice {
	case "bf16", "16", "":
		return tensor.Format{}, nil
	case "3", "4", "8":
		choice = "int" + choice
	}
	group := 0
	switch f.GroupSize {
	case "row":
	case "auto":
		if group = 128; slices.Contains(tensor.INT4.GroupSizes(), cfg.Quantization.Group()) && cfg.Quantization.Group() > 0 {
			group = cfg.Quantization.Group() // so that they keep their integers
		}
	default:
		var err error
		if group, err = strconv.Atoi(f.GroupSize); err != nil {
			return tensor.Format{}, fmt.Errorf("--group-size: %w", err)
		}
	}
	return tensor.Named(choice, group)
}

// GPUExperts returns the format that --gpu-expert-bits names; zero: it names none. Call it after
// Resolve, which checks the value.
func (f *PrecisionOptions) GPUExperts(cfg *model.Config) (t tensor.Format) {
	if f.GPUExpertBits != "auto" {
		t, _ = f.formatOf(cfg, f.GPUExpertBits)
	}
	return t
}

// Resolve turns the options into the precision of each part of a model. If whole is set, "auto"
// keeps every part as it is. If card is set, the experts are on a GPU.
func (f *PrecisionOptions) Resolve(cfg *model.Config, whole, card bool) (load.Precision, error) {
	p := load.Precision{}
	experts := f.CPUExpertBits
	if card {
		experts = f.GPUExpertBits
	}
	if (f.native() || f.ExpertFormat == "mixed") && len(cfg.Native) == 0 {
		return p, errors.New("--expert-format native or mixed: the files of the model hold no quantised blocks")
	}
	whole = whole || load.WeightBytes(cfg) < smallModel
	for _, x := range []struct {
		part       model.Part
		format     *tensor.Format
		flag, auto string
		exists     bool
	}{
		{model.Experts, &p.Experts, experts, "4", cfg.MoE.Experts > 0},
		{model.Attention, &p.Attention, f.AttentionQuant, "bf16", true},
		{model.KVB, &p.KVB, f.KVBProjQuant, "bf16", cfg.Has(model.KVB) && !(card && f.Precision != "mixed")},
		{model.Shared, &p.Shared, f.SharedExpertQuant, "int8", cfg.MoE.SharedFF > 0},
		{model.DenseFFN, &p.Dense, f.DenseMLPQuant, "int8", true},
		{model.Head, &p.Head, f.LMHeadQuant, "int8", true},
	} {
		if f.native() && (x.flag == "auto" || x.flag == "") && (!card || x.part == model.Experts) {
			if x.exists {
				*x.format = tensor.Native.By(tensor.BlockGroup)
			}
			continue
		}
		if x.part == model.Experts && x.flag == "auto" && f.Precision == "mixed" && !card && !whole && f.takesBlocks(cfg) {
			*x.format = tensor.Native.By(tensor.BlockGroup)
			continue
		}
		choice := x.flag
		switch {
		case x.part == model.Experts && f.ExpertFormat == "mixed":
			choice = "4" // for the size of the groups
		case f.Precision != "mixed":
			choice = f.Precision
		case choice == "auto" && whole:
			choice = "bf16"
		case choice == "auto" && x.auto == "bf16" && cfg.Types[x.part] == tensor.F32 && !(card && x.part == model.KVB):
			choice = "int8" // decoded weights would take four bytes each
		case choice == "auto":
			choice = x.auto
		}
		if !x.exists {
			continue
		}
		var err error
		if *x.format, err = f.formatOf(cfg, choice); err != nil {
			return p, err
		}
		if x.part == model.Experts && f.ExpertFormat == "mixed" {
			*x.format = tensor.Mixed.By(x.format.Group)
		}
	}
	return p, nil
}

// takesBlocks reports whether experts are multiplied as the files have them although no option says
// so: MXFP4 is smaller than INT4 in such groups, which would round it a second time.
func (f *PrecisionOptions) takesBlocks(cfg *model.Config) bool {
	return cfg.Quantization.Only(model.MXFP4) && len(cfg.Native) > 0 && (f.GroupSize == "auto" || f.GroupSize == "32")
}

// native reports whether blocks of the files are multiplied as they are.
func (f *PrecisionOptions) native() bool { return f.GGUFNative || f.ExpertFormat == "native" }

// HostExperts returns the format of the host's copy of experts that a GPU keeps as p says: the same,
// unless an option says otherwise.
func (f *PrecisionOptions) HostExperts(cfg *model.Config, p load.Precision) (tensor.Format, error) {
	if f.CPUExpertBits == "auto" {
		return p.Experts, nil
	}
	host, err := f.Resolve(cfg, false, false)
	return host.Experts, err
}

// check refuses flags that contradict one another.
func (f *PrecisionOptions) check() error {
	if f.GGUFNative && f.ExpertFormat == "mixed" {
		return errors.New("--gguf-native and --expert-format mixed contradict each other")
	}
	if (f.native() || f.ExpertFormat == "mixed") && (f.Precision != "mixed" || f.CPUExpertBits != "auto" || f.GPUExpertBits != "auto") {
		return errors.New("--expert-format native or mixed takes the formats of experts from the files: remove --precision, --cpu-expert-bits and --gpu-expert-bits")
	}
	if f.Precision == "mixed" {
		return nil
	}
	for _, one := range []string{f.CPUExpertBits, f.GPUExpertBits, f.AttentionQuant, f.KVBProjQuant, f.SharedExpertQuant, f.DenseMLPQuant, f.LMHeadQuant} {
		if one != "auto" && one != "" {
			return errors.New("--precision sets every part: remove the flags of single parts")
		}
	}
	return nil
}

// KVTypes are the values of --kv-dtype.
var KVTypes = map[string]tensor.DType{"bf16": tensor.BF16, "f32": tensor.F32, "fp8": tensor.F8E4M3, "int8": tensor.I8}

// AllIn returns the options with every part of the model in one precision.
func (f Options) AllIn(precision string) Options {
	f.PrecisionOptions = Default().PrecisionOptions
	f.Precision = precision
	return f
}
