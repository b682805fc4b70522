package scaled

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights"
)

const (
	blockConfig  = `{"quant_method":"fp8","weight_block_size":[128,128]}`
	int4Config   = `{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"a":{"weights":{"num_bits":4,"group_size":32}}}}`
	mxfp4Config  = `{"quant_method":"mxfp4"}`
	nvfp4Config  = `{"quant_method":"modelopt","quant_algo":"NVFP4"}`
	rowFP8Config = `{"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"a":{"weights":{"num_bits":8,"type":"float","strategy":"channel"}}}}`
)

// zeros is a tensor without anything but zeros.
func zeros(name, dtype string, shape ...int) stored {
	d, _ := tensor.ParseDType(dtype)
	n := d.Size()
	for _, x := range shape {
		n *= x
	}
	return stored{name, dtype, shape, make([]byte, n)}
}

// float is a tensor of one F32.
func float(name string, v float32) stored {
	return stored{name, "F32", []int{1}, binary.LittleEndian.AppendUint32(nil, math.Float32bits(v))}
}

// shape is weight_shape.
func shape(name string, dims ...int32) stored {
	s := stored{name, "I32", []int{len(dims)}, nil}
	for _, d := range dims {
		s.data = binary.LittleEndian.AppendUint32(s.data, uint32(d))
	}
	return s
}

// TestFaults: every fault is refused, and its tensor named.
func TestFaults(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, x := range []struct {
		config string
		err    error
		name   string // in the message
		list   []stored
	}{
		{blockConfig, ErrMissing, "a.weight", []stored{zeros("a.weight", "F8_E4M3", 4, 4)}},
		{blockConfig, ErrStray, "a.weight_scale_inv", []stored{zeros("a.weight_scale_inv", "F32", 1, 1)}},
		{blockConfig, ErrStray, "a.weight_scale_inv", []stored{zeros("a.weight", "BF16", 4, 4), zeros("a.weight_scale_inv", "F32", 1, 1)}},
		{blockConfig, ErrShape, "a.weight", []stored{zeros("a.weight", "F8_E4M3", 129, 4), zeros("a.weight_scale_inv", "F32", 1, 1)}},
		{blockConfig, ErrShape, "a.weight", []stored{zeros("a.weight", "F8_E4M3", 129, 4), zeros("a.weight_scale_inv", "F32", 1, 2)}},
		{blockConfig, ErrShape, "a.weight", []stored{zeros("a.weight", "F8_E4M3", 256, 200), zeros("a.weight_scale_inv", "F32", 4)}},
		{blockConfig, ErrShape, "a.weight", []stored{zeros("a.weight", "F8_E4M3", 4), zeros("a.weight_scale_inv", "F32", 1)}},
		{blockConfig, ErrShape, "a.weight", []stored{zeros("a.weight", "F8_E4M3", 0, 4), zeros("a.weight_scale_inv", "F32", 0, 1)}},
		{blockConfig, ErrType, "a.weight", []stored{zeros("a.weight", "F8_E4M3", 4, 4), zeros("a.weight_scale_inv", "I32", 1, 1)}},
		{blockConfig, ErrScheme, "a.weight", []stored{zeros("a.weight", "I8", 4, 4), zeros("a.weight_scale", "F32", 4, 1)}},
		{rowFP8Config, ErrShape, "a.weight", []stored{zeros("a.weight", "F8_E4M3", 4, 4), zeros("a.weight_scale", "F32", 1, 4)}},
		{int4Config, ErrMissing, "a.weight_packed", []stored{zeros("a.weight_packed", "I32", 2, 4), zeros("a.weight_scale", "BF16", 2, 1)}},
		{int4Config, ErrMissing, "a.weight_packed", []stored{zeros("a.weight_packed", "I32", 2, 4), shape("a.weight_shape", 2, 32)}},
		{int4Config, ErrShape, "a.weight_packed", []stored{zeros("a.weight_packed", "I32", 2, 4), shape("a.weight_shape", 3, 32), zeros("a.weight_scale", "BF16", 2, 1)}},
		{int4Config, ErrShape, "a.weight_packed", []stored{zeros("a.weight_packed", "I32", 2, 4), shape("a.weight_shape", 2, 33), zeros("a.weight_scale", "BF16", 2, 2)}},
		{int4Config, ErrShape, "a.weight_packed", []stored{zeros("a.weight_packed", "I32", 2, 4), shape("a.weight_shape", 2, -32), zeros("a.weight_scale", "BF16", 2, 1)}},
		{int4Config, ErrShape, "a.weight_packed", []stored{zeros("a.weight_packed", "I32", 2, 4), shape("a.weight_shape", 2), zeros("a.weight_scale", "BF16", 2, 1)}},
		{int4Config, ErrShape, "a.weight_packed", []stored{zeros("a.weight_packed", "I32", 8), shape("a.weight_shape", 2, 32), zeros("a.weight_scale", "BF16", 2, 1)}},
		{int4Config, ErrType, "a.weight_packed", []stored{zeros("a.weight_packed", "I32", 2, 4), zeros("a.weight_shape", "F32", 2), zeros("a.weight_scale", "BF16", 2, 1)}},
		{int4Config, ErrType, "a.weight_packed", []stored{zeros("a.weight_packed", "F32", 2, 4), shape("a.weight_shape", 2, 32), zeros("a.weight_scale", "BF16", 2, 1)}},
		{int4Config, ErrScheme, "a.weight_packed", []stored{zeros("a.weight_packed", "I32", 2, 8), shape("a.weight_shape", 2, 32), zeros("a.weight_scale", "BF16", 2, 1)}}, // 8 bits
		{int4Config, ErrOrder, "a.weight_packed", []stored{zeros("a.weight_packed", "I32", 2, 4), shape("a.weight_shape", 2, 32), zeros("a.weight_scale", "BF16", 2, 1), zeros("a.weight_g_idx", "I32", 32)}},
		{int4Config, ErrZeroPoint, "a.weight_packed", []stored{zeros("a.weight_packed", "I32", 2, 4), shape("a.weight_shape", 2, 32), zeros("a.weight_scale", "BF16", 2, 1), shape("a.weight_zero_point", 1)}},
		{int4Config, ErrStray, "a.weight", []stored{zeros("a.weight", "BF16", 2, 32), zeros("a.weight_packed", "I32", 2, 4), shape("a.weight_shape", 2, 32), zeros("a.weight_scale", "BF16", 2, 1)}},
		{nvfp4Config, ErrMissing, "a.weight", []stored{zeros("a.weight", "U8", 2, 8), zeros("a.weight_scale", "F8_E4M3", 2, 1)}},
		{nvfp4Config, ErrType, "a.weight", []stored{zeros("a.weight", "U8", 2, 8), zeros("a.weight_scale", "F8_E4M3", 2, 1), zeros("a.weight_scale_2", "BF16", 1)}},
		{nvfp4Config, ErrScale, "a.weight", []stored{zeros("a.weight", "U8", 2, 8), zeros("a.weight_scale", "F8_E4M3", 2, 1), float("a.weight_scale_2", 0)}},
		{nvfp4Config, ErrScale, "a.weight", []stored{zeros("a.weight", "U8", 2, 8), zeros("a.weight_scale", "F8_E4M3", 2, 1), float("a.weight_scale_2", inf)}},
		{nvfp4Config, ErrScale, "a.weight", []stored{zeros("a.weight", "U8", 2, 8), zeros("a.weight_scale", "F8_E4M3", 2, 1), float("a.weight_scale_2", inf-inf)}},
		{nvfp4Config, ErrScheme, "a.weight", []stored{zeros("a.weight", "U8", 2, 16), zeros("a.weight_scale", "U8", 2, 1)}},
		{mxfp4Config, ErrShape, "a_blocks", []stored{zeros("a_blocks", "U8", 2, 2, 17), zeros("a_scales", "U8", 2, 2)}},
		{mxfp4Config, ErrShape, "a_blocks", []stored{zeros("a_blocks", "U8", 2, 16), zeros("a_scales", "U8", 2)}},
		{mxfp4Config, ErrShape, "a_blocks", []stored{zeros("a_blocks", "U8", 2, 2, 16), zeros("a_scales", "U8", 2, 1)}},
		{mxfp4Config, ErrType, "a_blocks", []stored{zeros("a_blocks", "I8", 2, 2, 16), zeros("a_scales", "U8", 2, 2)}},
		{mxfp4Config, ErrMissing, "a_blocks", []stored{zeros("a_blocks", "U8", 2, 2, 16)}},
		{mxfp4Config, ErrStray, "a_blocks", []stored{zeros("a", "BF16", 2, 64), zeros("a_blocks", "U8", 2, 2, 16), zeros("a_scales", "U8", 2, 2)}},
		{mxfp4Config, ErrStray, "a_scales", []stored{zeros("a_scales", "U8", 2, 2)}},
	} {
		_, err := View(open(t, x.list...), quantization(t, []byte(x.config)))
		if !errors.Is(err, x.err) || !strings.Contains(err.Error(), `"`+x.name+`"`) {
			t.Errorf("%v: %v, want %v and %q", x.list, err, x.err, x.name)
		}
	}
}

// TestPlain: without a config, and beside quantised matrices, plain tensors stay as they are. What
// only quantised activations need is left out.
func TestPlain(t *testing.T) {
	list := []stored{
		zeros("a.weight", "BF16", 2, 2), zeros("b.weight", "F8_E4M3", 2, 2), zeros("b.weight_scale_inv", "F32", 1, 1),
		zeros("b.input_scale", "F32", 1), zeros("c_blocks", "U8", 2), zeros("d.bias", "F32", 2), zeros("d.k_scale", "F32", 1),
	}
	set, err := View(open(t, list...), quantization(t, []byte(blockConfig)))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"a.weight", "b.weight", "c_blocks", "d.bias"}; !slices.Equal(set.Names(), want) {
		t.Errorf("%v, want %v", set.Names(), want)
	}
	if n := set.Bytes(); n != 8+4+4+2+8 {
		t.Errorf("%d bytes", n)
	}
	b, _ := set.Tensor("b.weight")
	if err := b.Coded.Floats(make([]float32, 2), 2); err == nil {
		t.Error("row 2 of 2 could be read")
	}
	if err := b.Coded.Floats(make([]float32, 3), 0); err == nil {
		t.Error("a row and a half could be read")
	}
	if set, err = View(open(t, list...), nil); err != nil || len(set.Names()) != len(list) {
		t.Errorf("%v, %v", set, err)
	}
}

// TestOpen: a folder's config says how its matrices are read.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("model.safetensors", file(zeros("b.weight", "F8_E4M3", 2, 2), zeros("b.weight_scale_inv", "F32", 1, 1)))
	for config, want := range map[string]int{"": 2, "{}": 2, `{"quantization_config":` + blockConfig + "}": 1, `{"text_config":{"quantization_config":` + blockConfig + "}}": 1} {
		if config != "" {
			write("config.json", []byte(config))
		}
		set, err := Open(dir)
		if err != nil || len(set.Names()) != want {
			t.Fatalf("%s: %v, %v", config, set, err)
		}
		set.Close()
		os.Remove(filepath.Join(dir, "config.json"))
	}
	write("config.json", []byte(`{"quantization_config":{"quant_method":"awq"}}`))
	var field *model.FieldError
	if _, err := Open(dir); !errors.As(err, &field) || field.Field != "quantization_config.quant_method" {
		t.Error(err)
	}
}

// FuzzView: no file and no config makes View or the values fail otherwise than with an error.
func FuzzView(f *testing.F) {
	for _, name := range []string{"random.json", "compressed.json"} {
		for _, v := range readVectors(f, name) {
			if data := file(v.tensors(f, "a")...); len(data) < 1<<12 {
				f.Add(append([]byte(`{"quantization_config":`), append(v.Config, '}')...), data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, config, data []byte) {
		q, err := model.ParseQuantization(config)
		if err != nil || len(data) > 1<<16 {
			return
		}
		set, err := weights.FromBytes(map[string][]byte{"model.safetensors": data})
		if err != nil {
			return
		}
		if set, err = View(set, q); err != nil {
			return
		}
		for name, x := range set.All() {
			if x.Coded == nil {
				continue
			}
			rows, width := x.Rows()
			if rows*width > 1<<17+2*len(data) {
				t.Fatalf("%s: %v from %d bytes", name, x.Shape, len(data))
			}
			values := make([]float32, rows*width)
			if err := x.Floats(values, 0); err != nil {
				t.Fatal(name, err)
			}
			weights.IntegersOf(tensor.INT4.By(32), width, x)
			f := weights.FormatOf(x)
			if f.Zero() {
				continue
			}
			m, err := weights.Exactly(f, width, x)
			for r := 0; err == nil && m != nil && r < rows; r++ { // blocks have the values
				row := make([]float32, width)
				m.Row(row, r)
				if !slices.Equal(row, values[r*width:][:width]) {
					t.Fatalf("%s as %s: row %d", name, f, r)
				}
			}
		}
	})
}
