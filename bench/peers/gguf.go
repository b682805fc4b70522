package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
)

// kind is a block format of GGUF (ggml's ggml.h and ggml-common.h): its number, and the values and
// bytes of a block.
type kind struct{ id, values, bytes uint64 }

var (
	f32 = kind{0, 1, 4}
	q40 = kind{2, 32, 18}
	q50 = kind{6, 32, 22}
	q80 = kind{8, 32, 34}
	q4k = kind{12, 256, 144}
)

type entry struct {
	name string
	kind kind
	dims []uint64 // the row length first
	off  uint64
}

func (e *entry) values() uint64 {
	n := uint64(1)
	for _, d := range e.dims {
		n *= d
	}
	return n
}

func (e *entry) size() uint64 { return e.values() / e.kind.values * e.kind.bytes }

// pair is a key of the metadata: string, uint32, float32 or bool.
type pair struct {
	key   string
	value any
}

// file is a GGUF version 3 file: header, metadata, table of tensors, tensors.
type file struct {
	meta    []pair
	tensors []*entry
	experts uint64 // of a layer
}

const (
	magic     = 0x46554747 // "GGUF"
	version   = 3
	alignment = 32 // of every tensor
)

func aligned(n uint64) uint64 { return (n + alignment - 1) / alignment * alignment }

func (f *file) add(name string, k kind, dims ...uint64) {
	f.tensors = append(f.tensors, &entry{name: name, kind: k, dims: dims, off: aligned(f.end())})
}

// end is where the last tensor ends.
func (f *file) end() uint64 {
	if len(f.tensors) == 0 {
		return 0
	}
	last := f.tensors[len(f.tensors)-1]
	return last.off + last.size()
}

// check returns an error for a tensor whose rows are not whole blocks.
func (f *file) check() error {
	for _, t := range f.tensors {
		if t.dims[0]%t.kind.values != 0 {
			return fmt.Errorf("gguf: %s has rows of %d in blocks of %d", t.name, t.dims[0], t.kind.values)
		}
	}
	return nil
}

// bytes returns the size of all tensors.
func (f *file) bytes() (n uint64) {
	for _, t := range f.tensors {
		n += t.size()
	}
	return n
}

// tokenBytes returns how many bytes of weights a decoded token reads: everything but the embedding,
// and of the experts those of one token.
func (f *file) tokenBytes() (n uint64) {
	for _, t := range f.tensors {
		switch {
		case t.name == "token_embd.weight":
		case strings.HasSuffix(t.name, "_exps.weight"):
			n += t.size() / f.experts * topK
		default:
			n += t.size()
		}
	}
	return n
}

// output writes little-endian values and counts bytes. It keeps the first error.
type output struct {
	w   io.Writer
	pos uint64
	err error
}

func (o *output) raw(b []byte) {
	if o.err == nil {
		_, o.err = o.w.Write(b)
		o.pos += uint64(len(b))
	}
}

func (o *output) u32(v uint32) { o.raw(binary.LittleEndian.AppendUint32(nil, v)) }
func (o *output) u64(v uint64) { o.raw(binary.LittleEndian.AppendUint64(nil, v)) }

func (o *output) text(s string) {
	o.u64(uint64(len(s)))
	o.raw([]byte(s))
}

func (o *output) pad() { o.raw(make([]byte, aligned(o.pos)-o.pos)) }

// The numbers of value types.
const (
	typeU32    = 4
	typeF32    = 6
	typeBool   = 7
	typeString = 8
)

func (o *output) value(v any) {
	switch v := v.(type) {
	case string:
		o.u32(typeString)
		o.text(v)
	case uint32:
		o.u32(typeU32)
		o.u32(v)
	case float32:
		o.u32(typeF32)
		o.u32(math.Float32bits(v))
	case bool:
		o.u32(typeBool)
		b := byte(0)
		if v {
			b = 1
		}
		o.raw([]byte{b})
	}
}

// write writes the file with random weights, which are the same every time.
func (f *file) write(w io.Writer) error {
	o := &output{w: w}
	o.u32(magic)
	o.u32(version)
	o.u64(uint64(len(f.tensors)))
	o.u64(uint64(len(f.meta)))
	for _, p := range f.meta {
		o.text(p.key)
		o.value(p.value)
	}
	for _, t := range f.tensors {
		o.text(t.name)
		o.u32(uint32(len(t.dims)))
		for _, d := range t.dims {
			o.u64(d)
		}
		o.u32(uint32(t.kind.id))
		o.u64(t.off)
	}
	o.pad()
	r := rand.NewPCG(1, 2)
	for _, t := range f.tensors {
		if o.err != nil {
			return o.err
		}
		t.fill(o, r)
		o.pad()
	}
	return o.err
}

// fill writes random blocks whose values have a spread of about 0.02; norms are one.
func (t *entry) fill(o *output, r *rand.PCG) {
	if t.kind == f32 {
		normal := rand.New(r)
		for range t.values() {
			v := float32(1)
			if len(t.dims) > 1 {
				v = float32(normal.NormFloat64() * 0.02)
			}
			o.u32(math.Float32bits(v))
		}
		return
	}
	const most = 1 << 16 // blocks at once
	for left := t.size() / t.kind.bytes; left > 0; {
		n := min(left, most)
		left -= n
		buf := make([]byte, (n*t.kind.bytes+7)/8*8)
		for i := 0; i < len(buf); i += 8 {
			binary.LittleEndian.PutUint64(buf[i:], r.Uint64())
		}
		buf = buf[:n*t.kind.bytes]
		for at := uint64(0); at < uint64(len(buf)); at += t.kind.bytes {
			t.kind.scale(buf[at:])
		}
		o.raw(buf)
	}
}

// scale replaces the scale at the start of a block by a small one, float16.
func (k kind) scale(block []byte) {
	spread := 0.8 + 0.4*float32(block[0])/255
	put := func(at int, v float32) { binary.LittleEndian.PutUint16(block[at:], half(v*spread)) }
	switch k {
	case q40:
		put(0, 0.0043)
	case q50:
		put(0, 0.0021)
	case q80:
		put(0, 0.00027)
	case q4k:
		put(0, 0.0043/32)
		put(2, 0.0043*7.5/32)
	}
}

// half returns a positive number in float16's normal range as float16, truncated.
func half(v float32) uint16 {
	b := math.Float32bits(v)
	return uint16((b>>23)-127+15)<<10 | uint16(b>>13&0x3ff)
}
