//go:build unix

package synth

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights/gguf"
	"krater/stages/weights/gguf/folder"
)

// GGUFFile is the name of the file that WriteGGUF writes.
const GGUFFile = "model.gguf"

// GGUF says what a GGUF file has.
type GGUF struct {
	Experts gguf.Type // of routed experts
	Other   gguf.Type // of all other matrices but the embedding and routers
	Tokens  []string  // the texts of a byte-level tokenizer's tokens; nil: it has no tokenizer
}

// stored is a tensor of the file.
type stored struct {
	gguf.Tensor
	place  folder.Place
	from   []model.TensorSpec
	change func(float32) float32 // of plain numbers; nil: none
	scales []float32             // what the scale of a matrix of NVFP4 holds, or another tensor that is from none of the release
}

// WriteGGUF writes the model as one GGUF file with the names and keys of llama.cpp. Matrices are
// random blocks of the given types (one of BlockTypes), Q8_0 where rows are no whole blocks, or BF16
// where they are none of Q8_0 either. NVFP4 has the scale of a matrix beside it, and is Q8_0 where
// llama.cpp reads none. The embedding is BF16, and so are matrices that steer a skewed router.
func (m *Model) WriteGGUF(ctx context.Context, f Folder, o GGUF) error {
	for _, t := range []gguf.Type{o.Experts, o.Other} {
		if !slices.Contains(BlockTypes(), t) {
			return fmt.Errorf("synth: %w %s: random blocks are of %v", gguf.ErrType, t, BlockTypes())
		}
	}
	list, meta, err := m.stored(o)
	if err != nil {
		return fmt.Errorf("synth: %s: %w", m.Shape, err)
	}
	tensors := make([]gguf.Tensor, len(list))
	for i, s := range list {
		tensors[i] = s.Tensor
	}
	head, err := gguf.Head(meta, tensors)
	if err != nil {
		return fmt.Errorf("synth: %s: %w", m.Shape, err)
	}
	return f.make(m, func(w *writer) error {
		w.all = int64(len(head))
		for i := range tensors {
			n, _ := tensors[i].Size() // Head has checked it
			w.all += n + int64(gguf.Padding(n))
		}
		if err := w.room(); err != nil {
			return err
		}
		return w.put(GGUFFile, func(file *os.File) error {
			if err := w.append(file, head); err != nil {
				return err
			}
			for _, s := range list {
				if err := w.stored(ctx, file, s); err != nil {
					return fmt.Errorf("%s: %w", s.Name, err)
				}
			}
			return nil
		})
	})
}

// stored lists the tensors of the file and its metadata.
func (m *Model) stored(o GGUF) ([]stored, []gguf.Pair, error) {
	specs := map[string]model.TensorSpec{}
	var release []folder.Release
	for _, t := range m.Config.Expected() {
		specs[t.Name] = t
		release = append(release, folder.Release{Name: t.Name, Shape: t.Shape})
	}
	meta, places, err := folder.Export(m.JSON, release)
	if err != nil {
		return nil, nil, err
	}
	meta = append(meta, gguf.Pair{Key: "general.name", Value: m.Shape + ", random"})
	if o.Tokens != nil {
		meta = append(meta, gguf.Pair{Key: "tokenizer.ggml.model", Value: "gpt2"}, gguf.Pair{Key: "tokenizer.ggml.pre", Value: "gpt-2"},
			gguf.Pair{Key: "tokenizer.ggml.tokens", Value: o.Tokens}, gguf.Pair{Key: "tokenizer.ggml.merges", Value: []string{}})
	}
	var list []stored
	for _, p := range places {
		if p.Values != nil {
			list = append(list, stored{Tensor: gguf.Tensor{Name: p.Name, Type: gguf.F32, Shape: p.Shape}, scales: p.Values})
			continue
		}
		s := stored{Tensor: gguf.Tensor{Name: p.Name, Shape: p.Shape}, place: p}
		for _, name := range p.From {
			t := specs[name]
			if p.Part != "" {
				n := len(p.Shape)
				t.Name += "." + p.Part
				t.Shape = []int{elements(p.Shape) / p.Shape[n-1], p.Shape[n-1]}
			}
			s.from = append(s.from, t)
		}
		s.kind(m, o)
		list = append(list, s)
		if s.Type == gguf.NVFP4 {
			n := 1
			if s.from[0].Part == model.Experts {
				n = len(s.from)
			}
			of := m.blocks("", s.Type, m.floats(s.from[0]).std)
			list = append(list, stored{Tensor: gguf.Tensor{Name: p.Scale, Type: gguf.F32, Shape: []int{n}}, scales: slices.Repeat([]float32{of.factor}, n)})
		}
	}
	return list, meta, nil
}

// kind chooses the type of a tensor, and how its plain numbers differ from those of the release.
func (s *stored) kind(m *Model, o GGUF) {
	t := s.from[0]
	switch {
	case len(t.Shape) != 2 || t.Part == model.Router:
		s.Type = gguf.F32
		if t.Norm && m.Config.CentredNorms {
			s.change = func(v float32) float32 { return 1 + v }
		} else if t.Role == "a_log" {
			s.change = func(v float32) float32 { return float32(-math.Exp(float64(v))) }
		}
		return
	case t.Part == model.Embedding || m.floats(t).common != nil:
		s.Type = gguf.BF16
		return
	case t.Part == model.Experts:
		s.Type = o.Experts
	default:
		s.Type = o.Other
	}
	if s.Type == gguf.NVFP4 && s.place.Scale == "" {
		s.Type = gguf.Q8_0
	}
	for _, other := range []gguf.Type{gguf.Q8_0, gguf.BF16} {
		if t.Shape[1]%s.Type.Block().Elements != 0 {
			s.Type = other
		}
	}
}

func elements(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// stored writes one tensor and what aligns the next one.
func (w *writer) stored(ctx context.Context, f *os.File, s stored) error {
	for _, t := range s.from {
		r := w.m.floats(t)
		unit := s.Type.Block()
		if unit.Elements == 1 {
			unit.Elements, unit.Bytes = r.cols, r.cols*unit.Bytes // whole rows
		}
		var x *blocks
		if s.Type != gguf.F32 && s.Type != gguf.BF16 {
			x = w.m.blocks(strings.TrimSuffix(t.Name, ".weight"), s.Type, r.std)
		}
		n := r.rows * r.cols / unit.Elements
		step := max(8, bufBytes/max(unit.Bytes, 2*unit.Elements)&^7)
		for from := 0; from < n; from += step {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			to := min(from+step, n)
			b := w.bytes((to - from) * unit.Bytes)
			switch {
			case x != nil:
				x.fill(b, uint64(from), w.Threads)
			case s.Type == gguf.BF16:
				r.fill(b, from, to, w.Threads)
			default:
				w.wide(b, &r, from, to, s.change)
			}
			if err := w.append(f, b); err != nil {
				return err
			}
		}
	}
	size, _ := s.Size()
	b := make([]byte, 4*len(s.scales)+int(gguf.Padding(size)))
	if err := gguf.F32.Encode(b[:4*len(s.scales)], s.scales); err != nil {
		return err
	}
	return w.append(f, b)
}

// wide writes rows as float32.
func (w *writer) wide(dst []byte, r *floats, from, to int, change func(float32) float32) {
	narrow := make([]byte, 2*(to-from)*r.cols)
	r.fill(narrow, from, to, w.Threads)
	values := make([]float32, len(narrow)/2)
	for i := range values {
		values[i] = tensor.BF16ToF32(uint16(narrow[2*i]) | uint16(narrow[2*i+1])<<8)
		if change != nil {
			values[i] = change(values[i])
		}
	}
	if err := gguf.F32.Encode(dst, values); err != nil {
		panic(err) // the lengths fit
	}
}
