package model

import (
	json "encoding/json/v2"
	"fmt"
	"slices"
	"strings"
)

// Quantization describes how a checkpoint stores its quantised matrices (quantization_config). The quantised
// matrices are the ones with scales in the files.
type Quantization struct {
	Method  string // quant_method: "fp8", "mxfp4", "compressed-tensors", "modelopt"
	Schemes []Scheme
	Powers  bool // scales may be powers of two (F8_E8M0) under NAME.scale, as DeepSeek-V4 has them
}

// Scheme is a way to store a matrix: as codes, with one scale for each block of codes.
type Scheme struct {
	Codes Codes
	// Rows and Cols are the size of a block; 0: the size of the matrix.
	Rows, Cols int
}

// Codes selects the type of the codes of a scheme.
type Codes uint8

const (
	FP8   Codes = iota + 1 // F8_E4M3
	INT8                   // -128 to 127
	INT4                   // -8 to 7
	MXFP4                  // 4-bit floats with a power of two for 32 of a row
	NVFP4                  // 4-bit floats with an E4M3 scale for 16 of a row, and one for the tensor
)

var codeNames = [...]string{FP8: "FP8", INT8: "INT8", INT4: "INT4", MXFP4: "MXFP4", NVFP4: "NVFP4"}

func (c Codes) String() string { return codeNames[c] }

// String describes a scheme for people, such as "FP8 128x128 blocks" or "INT4 groups of 32".
func (s Scheme) String() string {
	switch {
	case s.Codes == MXFP4 || s.Codes == NVFP4:
		return s.Codes.String()
	case s.Rows == 0:
		return s.Codes.String() + " per tensor"
	case s.Cols == 0:
		return s.Codes.String() + " per channel"
	case s.Rows == 1:
		return fmt.Sprintf("%s groups of %d", s.Codes, s.Cols)
	}
	return fmt.Sprintf("%s %dx%d blocks", s.Codes, s.Rows, s.Cols)
}

// Encoding returns the name of a scheme as tensors have it: "f8_e4m3_128x128", "int4_g32", "mxfp4".
func (s Scheme) Encoding() string {
	name := strings.ToLower(s.Codes.String())
	if s.Codes == FP8 {
		name = "f8_e4m3"
	}
	switch {
	case s.Codes == MXFP4 || s.Codes == NVFP4:
		return name
	case s.Rows == 0:
		return name + "_tensor"
	case s.Cols == 0:
		return name + "_row"
	case s.Rows == 1:
		return fmt.Sprintf("%s_g%d", name, s.Cols)
	}
	return fmt.Sprintf("%s_%dx%d", name, s.Rows, s.Cols)
}

// String describes the schemes for people. It returns "" for plain numbers.
func (q *Quantization) String() string {
	if q == nil {
		return ""
	}
	var list []string
	for _, s := range q.Schemes {
		list = append(list, s.String())
	}
	return strings.Join(list, ", ")
}

// Group returns the number of columns that share a scale if every scheme is INT4 or MXFP4 in groups of
// the same size, else 0.
func (q *Quantization) Group() (n int) {
	if q == nil {
		return 0
	}
	for _, s := range q.Schemes {
		if s.Codes != INT4 && s.Codes != MXFP4 || s.Rows != 1 || n != 0 && n != s.Cols {
			return 0
		}
		n = s.Cols
	}
	return n
}

// Only reports whether every scheme has these codes.
func (q *Quantization) Only(c Codes) bool {
	return q != nil && !slices.ContainsFunc(q.Schemes, func(s Scheme) bool { return s.Codes != c })
}

// maxBlock bounds the sides of a block that shares a scale.
const maxBlock = 1 << 16

// ParseQuantization reads quantization_config of a config.json, also within a wrapper's config. It
// returns nil if the weights are plain numbers, and a *FieldError for a field that it cannot read.
func ParseQuantization(configJSON []byte) (*Quantization, error) {
	f, err := readFields(configJSON)
	if err != nil {
		return nil, err
	}
	q := quantization(f)
	if f.failed() {
		return nil, joinErrors(*f.errs, 0)
	}
	return q, nil
}

// quantization reads quantization_config of a model, or of the language model that it wraps.
func quantization(f fields) *Quantization {
	x, ok := f.object("quantization_config")
	if !ok {
		if f, ok = f.object("text_config"); ok {
			x, ok = f.object("quantization_config")
		}
	}
	if !ok {
		return nil
	}
	q := &Quantization{Method: x.stringOr("quant_method", "")}
	switch q.Method {
	case "fp8":
		q.Schemes = []Scheme{x.blockFP8()}
		q.Powers = x.stringOr("scale_fmt", "") == "ue8m0"
		// DeepSeek-V4 says beside it, later releases within, that experts have 4 bits.
		for _, f := range []fields{f, x} {
			if f.stringOr("expert_dtype", "") == "fp4" {
				q.Schemes, q.Powers = append(q.Schemes, Scheme{MXFP4, 1, 32}), true
				break
			}
		}
	case "mxfp4":
		q.Schemes = []Scheme{{MXFP4, 1, 32}}
	case "compressed-tensors":
		q.Schemes = x.compressed()
	case "modelopt":
		q.Schemes = x.modelOpt()
	case "":
		x.require("quant_method")
	default:
		x.fail("quant_method", "weights quantised by %s cannot be read (known: fp8, mxfp4, compressed-tensors, modelopt)", clip(q.Method))
	}
	if len(q.Schemes) == 0 {
		return nil
	}
	return q
}

// blockFP8 reads the config of DeepSeek-V3's format, which Qwen3 and MiniMax-M2 share. Without
// weight_block_size one scale serves a tensor. How activations are rounded (activation_scheme) is
// not followed: they stay as they are.
func (f fields) blockFP8() Scheme {
	f.oneOf("fmt", "e4m3", "e4m3", "float8_e4m3fn")
	rows, cols := f.block("weight_block_size")
	return Scheme{FP8, rows, cols}
}

// block returns the rows and columns that share a scale; 0, 0 when absent or null.
func (f fields) block(name string) (rows, cols int) {
	if !f.has(name) {
		return 0, 0
	}
	var list []int
	if json.Unmarshal(f.raw[name], &list) != nil || len(list) != 2 || min(list[0], list[1]) < 1 || max(list[0], list[1]) > maxBlock {
		f.fail(name, "want the rows and columns that share a scale, got %s", clip(string(f.raw[name])))
		return 0, 0
	}
	return list[0], list[1]
}

// maxGroups bounds the groups of modules that have a scheme of their own.
const maxGroups = 64

// compressed reads the schemes of compressed-tensors. ignore and targets say which modules they
// are for, as the files do.
func (f fields) compressed() (list []Scheme) {
	if t, ok := f.object("transform_config"); ok && len(t.raw) > 0 {
		f.fail("transform_config", "rotated weights cannot be read")
	}
	if s, ok := f.object("sparsity_config"); ok && len(s.raw) > 0 {
		s.oneOf("format", "dense", "dense")
	}
	whole := f.stringOr("format", "")
	for _, g := range f.objects("config_groups", maxGroups) {
		w, ok := g.object("weights")
		if !ok { // only activations
			continue
		}
		format := g.stringOr("format", whole)
		if format == "dense" {
			continue
		}
		s := w.weights(format)
		if s.Codes == 0 && !w.failed() {
			g.fail("format", "%q of %d bits of %q cannot be read (known: float-quantized, int-quantized, naive-quantized, pack-quantized, nvfp4-pack-quantized, mxfp4-pack-quantized, mxfp8-quantized)",
				clip(format), w.intOr("num_bits", 8, 1, 64), w.stringOr("type", "int"))
		}
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// weights reads how compressed-tensors stores the weights of a group of modules.
func (f fields) weights(format string) (s Scheme) {
	if !f.boolOr("symmetric", true) {
		f.fail("symmetric", "weights with zero points cannot be read")
	}
	if f.has("actorder") && f.raw["actorder"].Kind() != 'f' {
		f.oneOf("actorder", "static", "static", "weight") // others change the order of columns
	}
	if f.boolOr("dynamic", false) {
		f.fail("dynamic", "weights cannot be quantised at run time")
	}
	kind, bits := f.oneOf("type", "int", "int", "float"), f.intOr("num_bits", 8, 1, 64)
	switch format {
	case "pack-quantized":
		switch {
		case kind == "int" && bits == 4:
			s.Codes = INT4
		case kind == "int" && bits == 8:
			s.Codes = INT8
		}
	case "float-quantized", "int-quantized", "naive-quantized":
		switch {
		case kind == "float" && bits == 8:
			s.Codes = FP8
		case kind == "int" && bits == 8:
			s.Codes = INT8
		}
	case "mxfp8-quantized":
		return Scheme{FP8, 1, f.intOr("group_size", 32, 32, 32)}
	case "nvfp4-pack-quantized":
		return Scheme{NVFP4, 1, f.intOr("group_size", 16, 16, 16)}
	case "mxfp4-pack-quantized":
		return Scheme{MXFP4, 1, f.intOr("group_size", 32, 32, 32)}
	}
	s.Rows, s.Cols = f.strategy()
	return s
}

// strategy reads which weights share a scale.
func (f fields) strategy() (rows, cols int) {
	group := f.intOr("group_size", 0, -1, maxBlock)
	usual := "tensor"
	switch {
	case group > 0:
		usual = "group"
	case group < 0:
		usual = "channel"
	}
	switch f.oneOf("strategy", usual, "tensor", "channel", "group", "block") {
	case "channel":
		return 1, 0
	case "group":
		if group < 2 || group%2 != 0 {
			f.fail("group_size", "want an even number of columns for strategy group, got %d", group)
		}
		return 1, group
	case "block":
		rows, cols = f.block("block_structure")
		if rows == 0 {
			f.require("block_structure")
		}
	}
	return rows, cols
}

// modelOpt reads the config of NVIDIA's Model Optimizer.
func (f fields) modelOpt() []Scheme {
	if !f.require("quant_algo") {
		return nil
	}
	switch f.oneOf("quant_algo", "", "FP8", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4") {
	case "FP8":
		return []Scheme{{FP8, 0, 0}}
	case "FP8_PB_WO":
		return []Scheme{{FP8, 128, 128}}
	case "FP8_PER_CHANNEL_PER_TOKEN":
		return []Scheme{{FP8, 1, 0}}
	case "NVFP4":
		return []Scheme{{NVFP4, 1, f.intOr("group_size", 16, 16, 16)}}
	}
	return nil
}
