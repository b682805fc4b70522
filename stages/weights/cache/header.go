package cache

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"krater/kernels/tensor"
)

// The header of a file of experts:
//
//	  0  "KRATERWB" for a CPU, "KRATERWA" for a GPU
//	  8  u32 version
//	 12  u32 zero, group, method
//	 24  u32 layers with experts, experts, hidden_size, moe_intermediate_size
//	 40  [32] fingerprint of the source
//	 72  u64 size of the file
//	 80  [32] name of the encoding, filled up with zeros
//	112  u32 checksum of bytes 0..111
//	116  u32 seal: checksum of the whole header with this field zero, of a finished
//	     file; 0 while it is built
//	120  a layer after the other, 16 bytes each: u32 layer, checksum of its bytes,
//	     1 when it is there, checksum of the 12 bytes before
//
// Version 1 has no name: at 12 it has the bits, 4 or 8 of integers, and all that follows the
// name is 32 bytes nearer.
//
// then zeros. Checksums are CRC-32C (Castagnoli): it detects every burst up to 32
// bits, is in the standard library, and has an instruction of its own on amd64
// and arm64, so that verifying runs at memory speed (12-20 GB/s per core) and can
// be part of the pass that reads the file into memory. It does not protect against
// deliberate forgery: an attacker who can write the cache can also write the
// model.
const (
	magic       = "KRATERWB"
	magicA      = "KRATERWA"
	version     = 2
	nameAt      = 80
	nameBytes   = 32
	sumAt       = nameAt + nameBytes
	sealAt      = sumAt + 4
	headerFixed = sealAt + 4
	headerLayer = 16
)

// fields are the places that differ between versions of the header.
type fields struct {
	sum, seal, fixed int // fixed: the first layer
}

// fields returns the header fields of the version of the plan's file.
func (p *Plan) fields() fields {
	if p.first {
		return fields{nameAt, nameAt + 4, nameAt + 8}
	}
	return fields{sumAt, sealAt, headerFixed}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// entry is a layer in the header.
type entry struct {
	layer int
	sum   uint32
	done  bool
}

// encode makes the header of a plan, no layer done, without a seal.
func (p *Plan) encode(l *layout) []byte {
	b := make([]byte, l.header)
	copy(b, magic)
	if p.For == tensor.GPU {
		copy(b, magicA)
	}
	le := binary.LittleEndian
	for i, v := range []int{version, 0, p.Format.Group, int(p.Method), len(p.Layers), p.Experts, p.Hidden, p.FF} {
		le.PutUint32(b[8+4*i:], uint32(v))
	}
	copy(b[40:], p.Source[:])
	le.PutUint64(b[72:], uint64(l.file))
	copy(b[nameAt:nameAt+nameBytes], p.Format.Name())
	le.PutUint32(b[sumAt:], checksum(b[:sumAt]))
	for i, n := range p.Layers {
		putEntry(b, i, entry{layer: n})
	}
	return b
}

func putEntry(b []byte, i int, e entry) {
	b = b[headerFixed+i*headerLayer:][:headerLayer]
	le := binary.LittleEndian
	le.PutUint32(b, uint32(e.layer))
	le.PutUint32(b[4:], e.sum)
	le.PutUint32(b[8:], 0)
	if e.done {
		b[8] = 1
	}
	le.PutUint32(b[12:], checksum(b[:12]))
}

// sealOf returns the checksum of a whole header with the four bytes at a place zero.
func sealOf(b []byte, at int) uint32 {
	sum := crc32.Update(checksum(b[:at]), castagnoli, []byte{0, 0, 0, 0})
	return crc32.Update(sum, castagnoli, b[at+4:])
}

// putSeal writes it there.
func putSeal(b []byte, at int) { binary.LittleEndian.PutUint32(b[at:], sealOf(b, at)) }

// parse reads a header. file is the start of the file, or all of it; nothing is
// allocated beyond what lies in it. Entries of layers that are not valid come
// back as not done; sealed reports whether the header as a whole is that of a
// finished file.
func parse(file []byte) (p Plan, entries []entry, sealed bool, err error) {
	kind := string(file[:min(len(file), len(magic))])
	if kind != magic && kind != magicA {
		return p, nil, false, ErrForeign
	}
	le := binary.LittleEndian
	if len(file) >= 12 {
		if v := le.Uint32(file[8:]); v != version && v != 1 {
			return p, nil, false, fmt.Errorf("%w: %d, want %d", ErrVersion, v, version)
		}
		p.first = le.Uint32(file[8:]) == 1
	}
	at := p.fields()
	if len(file) < at.fixed {
		return p, nil, false, fmt.Errorf("%w: %d bytes", ErrTruncated, len(file))
	}
	if le.Uint32(file[at.sum:]) != checksum(file[:at.sum]) {
		return p, nil, false, fmt.Errorf("%w: header", ErrDamaged)
	}
	field := func(i int) int { return int(int32(le.Uint32(file[8+4*i:]))) }
	layers := field(4)
	p = Plan{Experts: field(5), Hidden: field(6), FF: field(7), Method: Method(min(255, uint32(field(3)))), Source: Fingerprint(file[40:72]), first: p.first}
	e, name := tensor.Integers(field(1)), fmt.Sprint(field(1), " bits")
	if !p.first {
		name = strings.TrimRight(string(file[nameAt:nameAt+nameBytes]), "\x00")
		if e = tensor.EncodingOf(name); field(1) != 0 || strings.Contains(name, "\x00") {
			return p, nil, false, fmt.Errorf("%w: header", ErrDamaged)
		}
	}
	if e == nil {
		return p, nil, false, fmt.Errorf("%w: it has weights in a format that this program does not know: %q", ErrVersion, name)
	}
	if p.Format = e.By(field(2)); kind == magicA {
		p.For = tensor.GPU
	}
	if layers < 1 || layers > maxLayers {
		return p, nil, false, fmt.Errorf("%w: %d layers", ErrDamaged, layers)
	}
	if len(file) < at.fixed+layers*headerLayer {
		return p, nil, false, fmt.Errorf("%w: %d bytes", ErrTruncated, len(file))
	}
	for i := range layers {
		b := file[at.fixed+i*headerLayer:][:headerLayer]
		e := entry{layer: int(int32(le.Uint32(b))), sum: le.Uint32(b[4:]), done: le.Uint32(b[8:]) == 1}
		if le.Uint32(b[12:]) != checksum(b[:12]) {
			e.sum, e.done = 0, false
		}
		entries = append(entries, e)
		p.Layers = append(p.Layers, e.layer)
	}
	l, err := p.layout()
	if err != nil {
		return p, nil, false, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if le.Uint64(file[72:]) != uint64(l.file) {
		return p, nil, false, fmt.Errorf("%w: a file of %d bytes by its header, of %d by its shapes", ErrDamaged, le.Uint64(file[72:]), l.file)
	}
	if int64(len(file)) < l.header {
		return p, nil, false, fmt.Errorf("%w: %d bytes", ErrTruncated, len(file))
	}
	return p, entries, le.Uint32(file[at.seal:]) == sealOf(file[:l.header], at.seal), nil
}

// check holds the header of a file of size bytes against the plan: nil for a
// finished file that may be used once its layers' checksums match.
func (p *Plan) check(file []byte, size int64) ([]entry, error) {
	got, entries, sealed, err := parse(file)
	if err != nil {
		return nil, err
	}
	l, err := got.layout()
	if err != nil {
		return nil, err
	}
	if why := p.differs(&got); why != "" {
		return nil, fmt.Errorf("%w: %s", ErrStale, why)
	}
	switch {
	case size != l.file:
		return nil, fmt.Errorf("%w: %d bytes, want %d", ErrTruncated, size, l.file)
	case !sealed && binary.LittleEndian.Uint32(file[got.fields().seal:]) == 0:
		return nil, ErrUnfinished
	case !sealed:
		return nil, fmt.Errorf("%w: header", ErrDamaged)
	}
	for _, e := range entries {
		if !e.done {
			return nil, fmt.Errorf("%w: layer %d", ErrUnfinished, e.layer)
		}
	}
	return entries, nil
}

// differs says why a file of plan got cannot serve p, or "".
func (p *Plan) differs(got *Plan) string {
	switch {
	case got.For != p.For:
		return fmt.Sprintf("for a %s, want one for a %s", got.For, p.For)
	case got.Format != p.Format:
		return fmt.Sprintf("%s, want %s", got.Format, p.Format)
	case shape(p, got) != "":
		return shape(p, got)
	case got.Source != p.Source:
		return fmt.Sprintf("made from other weights: %s, these are %s", got.Source, p.Source)
	case got.Method < p.Method:
		return fmt.Sprintf("made by %s, want %s", got.Method, p.Method)
	}
	return ""
}

// shape says how the experts of two plans differ in number and size, or "".
func shape(p, got *Plan) string {
	if got.Experts == p.Experts && got.Hidden == p.Hidden && got.FF == p.FF && slices.Equal(got.Layers, p.Layers) {
		return ""
	}
	return fmt.Sprintf("%d layers of %d experts %d x %d, want %d of %d, %d x %d",
		len(got.Layers), got.Experts, got.Hidden, got.FF, len(p.Layers), p.Experts, p.Hidden, p.FF)
}
