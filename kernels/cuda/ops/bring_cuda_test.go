//go:build cuda

package ops

import (
	"slices"
	"strings"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/link"
	"krater/kernels/tensor"
)

// pile is a rig's experts as they lie in slots, in host memory, and slots that have some of them.
type pile struct {
	from, first, slots launch.Mat
	bank               launch.Bank // in the slots
}

// piled lays the rig's experts out in memory, which has room for them, and those of where in slots. Other slots are poisoned.
func (r *mapRig) piled(memory []byte, at launch.Ptr, where []int32) pile {
	c, b := r.c, r.bank
	parts := []*launch.Ptr{&b.W13.A.Values, &b.W13.A.Scales, &b.W2.A.Values, &b.W2.A.Scales}
	sizes := []int64{b.Step, b.ScaleStep, b.Step2, b.ScaleStep2}
	step := int64(0)
	for _, n := range sizes {
		step += n
	}
	room := slices.Repeat([]byte{cudatest.Poison}, int(mapSlots*step))
	offset := int64(0)
	for i, p := range parts {
		all := cudatest.Download[byte](c, *p, int(mapExperts*sizes[i]))
		for e := range int64(mapExperts) {
			copy(memory[e*step+offset:], all[e*sizes[i]:][:sizes[i]])
		}
		*p = launch.Ptr(offset)
		offset += sizes[i]
	}
	for e, slot := range where {
		if slot >= 0 {
			copy(room[int64(slot)*step:][:step], memory[int64(e)*step:])
		}
	}
	to := cudatest.Upload(c, room)
	for _, p := range parts {
		*p += to
	}
	b.Step, b.ScaleStep, b.Step2, b.ScaleStep2 = step, step, step, step
	mat := func(at launch.Ptr, rows int) launch.Mat {
		return launch.Mat{At: at, DType: tensor.F32, Rows: rows, Cols: int(step / 4), Stride: int(step / 4)}
	}
	from := mat(at, mapExperts)
	return pile{from, from.ColRange(0, int(sizes[0]+sizes[1])/4), mat(to, mapSlots), b}
}

// TestMixWhileExpertsCome: a mixture behind the launch that brings some of its experts has the bits of one whose
// experts were there. Experts of few rows are read by a launch that begins while the others come.
func TestMixWhileExpertsCome(t *testing.T) {
	c := cudatest.Open(t)
	for _, k := range []cudatest.Layout{{Bits: 4, Group: 128}, {Bits: 8, Group: 64}} {
		r := newMapRig(t, c, k, cudatest.Layout{Bits: 8, Group: k.Group}, tensor.BF16)
		memory, at, err := c.MapHost(mapExperts * int(r.bank.Step+r.bank.ScaleStep+r.bank.Step2+r.bank.ScaleStep2))
		if err != nil {
			t.Fatal(err)
		}
		where := []int32{nowhere, 2, nowhere, 8, nowhere, nowhere}
		terms := c.I32([]int32{160, 5, 7, 0, -1}, 1, 5) // of four that are missing two are brought
		for _, rows := range []int{1, 3, 5, 16, 70} {
			p := r.piled(memory, at, where)
			ids, weights := c.I32(r.ids, rows, mapTopK), c.F32(r.weights, rows, mapTopK)
			now, list, coming := c.I32(make([]int32, mapExperts), 1, mapExperts), c.I32(make([]int32, 8), 1, 8), c.I32(make([]int32, mapSlots), 1, mapSlots)
			p.bank.Map, p.bank.Coming = now.At, coming.At
			sum, delta := c.F32(make([]float32, rows*mapHidden), rows, mapHidden), c.Mat(tensor.BF16, rows, mapHidden)
			y, z := c.Mat(tensor.BF16, rows*mapTopK, mapHidden), c.Mat(tensor.BF16, rows, mapHidden)
			next := ""
			r.run(func(b *Builder) {
				link.Pick(b.List, now, list, coming, ids, c.I32(where, 1, mapExperts), terms)
				link.Bring(b.List, p.slots, p.from, p.first, list, coming)
				b.AddMix(sum, delta, y, z, r.x.RowRange(0, rows), p.bank, r.shared, ids, weights)
				i := slices.IndexFunc(b.List.Ops, func(o launch.Op) bool { return o.Kernel.String() == "kr_link_bring" })
				next = b.List.Ops[i+1].Kernel.String()
			})
			if k.Bits == 4 && rows <= 64 && !strings.HasPrefix(next, "kr_gemv_gate_up_") {
				t.Errorf("%d rows: %s follows the launch that brings", rows, next)
			}
			i, w := present(cudatest.Download[int32](c, now.At, mapExperts), r.ids, r.weights)
			if got := c.Floats(sum); !slices.Equal(got, r.mix(rows, true, r.bank, i, w)) {
				t.Errorf("%+v, %d rows: another sum", k, rows)
			}
		}
		if err := c.FreeHost(memory); err != nil {
			t.Error(err)
		}
	}
}
