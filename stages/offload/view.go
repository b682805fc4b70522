package offload

import (
	"fmt"
	"slices"
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// View is where an accelerator finds the experts of every layer: tables of slots in its
// memory. What differs between two operators of a stream is enqueued on it.
type View struct {
	x     *Experts
	table device.Mat    // [layers, E] I32
	rows  map[int]int   // of a layer
	have  [][]int32     // [layers][E] what was enqueued last
	sent  [][]int32     // [layers][E] the same, as the device's memory has it
	doubt []bool        // [layers] whether it may be lost
	banks []device.Bank // [layers]
}

// NewView makes tables in which no expert lies anywhere.
func (x *Experts) NewView(s device.Stream) (*View, error) {
	layers, n := x.Layers(), x.parts.Config.MoE.Experts
	v := &View{x: x, rows: map[int]int{}}
	if len(layers) == 0 {
		return v, nil
	}
	var err error
	if v.table, err = device.AllocMat(x.dev, tensor.I32, len(layers), n); err != nil {
		return nil, fmt.Errorf("offload: tables of experts: %w", err)
	}
	nowhere := make([]int32, n)
	for e := range nowhere {
		nowhere[e] = -1
	}
	for i, layer := range layers {
		b, err := x.parts.Slots.Bank(x.room, layer, n)
		if err != nil {
			return nil, err
		}
		b.Map = v.table.RowRange(i, i+1)
		v.rows[layer] = i
		v.banks = append(v.banks, b)
		v.have, v.sent, v.doubt = append(v.have, make([]int32, n)), append(v.sent, make([]int32, n)), append(v.doubt, false)
		v.Set(s, layer, nowhere)
	}
	return v, s.Synchronize()
}

// ViewBytes returns the number of bytes that NewView allocates.
func ViewBytes(layers, experts int) int64 { return 4 * int64(layers) * int64(experts) }

// Bank returns a layer's experts as operators take them.
func (v *View) Bank(layer int) *device.Bank { return &v.banks[v.rows[layer]] }

// Slots returns the slot of each expert of a layer, below 0 if it has none. The caller must not change it.
func (v *View) Slots(layer int) []int32 { return v.have[v.rows[layer]] }

// Set makes operators that are enqueued on s from now on find the experts of a layer in these slots.
func (v *View) Set(s device.Stream, layer int, slots []int32) {
	i := v.rows[layer]
	if !v.doubt[i] && slices.Equal(v.have[i], slots) {
		return
	}
	v.doubt[i] = false
	copy(v.have[i], slots)
	for e, slot := range slots {
		if v.sent[i][e] = slot; slot >= 0 {
			v.sent[i][e] = int32(v.x.place(int(slot)))
		}
	}
	s.CopyIn(v.table.RowRange(i, i+1), hostInts(v.sent[i]))
}

// Doubt says that what Set enqueued last of a layer may not have reached the device: Set
// enqueues it next time whatever it is.
func (v *View) Doubt(layer int) { v.doubt[v.rows[layer]] = true }

// Close frees the tables.
func (v *View) Close() {
	if !v.table.Zero() {
		v.table.Buf.Free()
		v.table = device.Mat{}
	}
}

// hostInts is v's memory: hosts here are little-endian, as devices are.
func hostInts(v []int32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

// hostFloats is hostInts for floats.
func hostFloats(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}
