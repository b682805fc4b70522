package tensor

import (
	"encoding/binary"
	"fmt"
)

// blockBands is how a CPU keeps an encoding of blocks: the bits of each block of 16 rows in another
// order, none added and none left out. Lines of 64 bytes (integerTiles says what a line is) make up
// the values; what does not fill a line is with the scales. Both are [band][block of columns].
//
// The order is that of the kernels (kernels/cpu/blockdot): a line is read as it lies, lane r of 4
// bytes being row r. The files of the encodings describe their lines.
type blockBands struct {
	*stored
	fields []moved
	// The same for Pack: what goes to a dword of values is put together before it is stored.
	dwords        []dword
	others        []moved
	values, small int // bytes of a block of 16 rows
}

// moved is a piece of a block, at most 8 bits that lie in one byte of the file and in one byte of
// the band.
type moved struct {
	from   uint16 // byte of the block
	shift  uint8  // in it
	mask   uint8  // of the bits, shifted down
	small  bool   // it lies with the scales
	to     uint32 // bit of row 0
	stride uint8  // bits from row to row: 4, 8, 16 or 32
}

// dword is the pieces of a block that go to the same four bytes of values.
type dword struct {
	at     uint32 // byte of row 0; the next row's is 4 bytes further
	pieces []moved
}

// fields gathers the pieces of a block.
type fields struct {
	list          []moved
	values, small int // bytes used
}

// line reserves a number of lines, and returns the bit where they begin.
func (p *fields) line(n int) int {
	at := p.values
	p.values += n * lineBytes
	return 8 * at
}

// aside reserves a number of bytes for each row with the scales.
func (p *fields) aside(n int) int {
	at := p.small
	p.small += n * TileRows
	return 8 * at
}

// move enters width bits of the block, from bit from on, which go to bit to of row 0 and stride bits
// further for each row.
func (p *fields) move(small bool, from, width, to, stride int) {
	for width > 0 {
		n := min(width, 8-from%8, 8-to%8)
		p.list = append(p.list, moved{uint16(from / 8), uint8(from % 8), uint8(1<<n - 1), small, uint32(to), uint8(stride)})
		from, to, width = from+n, to+n, width-n
	}
}

// byteOf is the bit where byte b of a row of a line begins.
func byteOf(line, b int) int { return line + 8*b }

// half moves the 16 bits at byte from to [16 rows] with the scales.
func (p *fields) half(from int) { p.move(true, 8*from, 16, p.aside(2), 16) }

// nibbles moves the 4-bit codes of 32 columns to four lines, as INT4 lies: from gives the bit of a
// column's code.
func (p *fields) nibbles(from func(column int) int) {
	line := p.line(4)
	for c := range 32 {
		p.move(false, from(c), 4, line+c/8*8*lineBytes+8*(c%4)+c%8/4*4, 32)
	}
}

// wordBytes moves the four bytes at byte from to a line, one dword a row.
func (p *fields) wordBytes(from int) { p.move(false, 8*from, 32, p.line(1), 32) }

func newBlockBands(s *stored) blockBands {
	var p fields
	s.fields(&p)
	bits := 0
	for _, f := range p.list {
		for m := f.mask; m > 0; m >>= 1 {
			bits++
		}
	}
	if bits != 8*s.bytes || p.values+p.small != TileRows*s.bytes {
		panic(fmt.Sprintf("tensor: a band keeps %d bits of %d in %d bytes", bits, 8*s.bytes, p.values+p.small))
	}
	b := blockBands{stored: s, fields: p.list, values: p.values, small: p.small}
	place := map[uint32]int{}
	for _, f := range p.list {
		if f.small || f.stride != 32 {
			b.others = append(b.others, f)
			continue
		}
		at := f.to / 32 * 4
		i, ok := place[at]
		if !ok {
			i, place[at] = len(b.dwords), len(b.dwords)
			b.dwords = append(b.dwords, dword{at: at})
		}
		b.dwords[i].pieces = append(b.dwords[i].pieces, f)
	}
	return b
}

func (b blockBands) Check(l Layout) error {
	switch {
	case l.Joined:
		return errJoined
	case l.Group != BlockGroup:
		return fmt.Errorf("%w: %d, want %d", errGroup, l.Group, BlockGroup)
	case l.Cols%b.columns != 0:
		return fmt.Errorf("%d columns are not whole blocks of %d", l.Cols, b.columns)
	}
	return nil
}

func (b blockBands) BandBytes(l Layout) (values, scales int) {
	n := l.Cols / b.columns
	return n * b.values, b.factorBytes(l.Cols) + n*b.small
}

// factorBytes is the size of the factors of a band.
func (b blockBands) factorBytes(cols int) int { return 4 * TileRows * b.factors(cols) }

func (b blockBands) Pack(l Layout, values, scales []byte, m *Matrix, band int) {
	clear(values)
	clear(scales)
	var rows [TileRows][]byte
	n, factors := min(TileRows, l.Rows-band*TileRows), b.factors(l.Cols)
	for r := range n {
		rows[r] = m.rowOf(band*TileRows + r)
		for i := range factors {
			copy(scales[4*(i*TileRows+r):][:4], rows[r][4*i:])
		}
		rows[r] = rows[r][4*factors:]
	}
	scales = scales[b.factorBytes(l.Cols):]
	for i := range l.Cols / b.columns {
		b.packBlocks(rows[:n], i*b.bytes, values[i*b.values:][:b.values], scales[i*b.small:][:b.small])
	}
}

// packBlocks packs a block of each row, which begin at byte from of them.
func (b blockBands) packBlocks(rows [][]byte, from int, values, scales []byte) {
	for _, w := range b.dwords {
		var x [TileRows]uint32
		for i := range w.pieces {
			f := &w.pieces[i]
			at, shift, mask, to := from+int(f.from), f.shift&7, f.mask, f.to&31
			for r, row := range rows {
				x[r] |= uint32(row[at]>>shift&mask) << to
			}
		}
		for r := range rows {
			binary.LittleEndian.PutUint32(values[int(w.at)+4*r:], x[r])
		}
	}
	for i := range b.others {
		f := &b.others[i]
		to := values
		if f.small {
			to = scales
		}
		for r, row := range rows {
			at := f.to + uint32(r)*uint32(f.stride)
			to[at>>3] |= row[from+int(f.from)] >> (f.shift & 7) & f.mask << (at & 7)
		}
	}
}

func (b blockBands) Unpack(l Layout, values, scales []byte, r int, m *Matrix, to int) {
	v, s := b.BandBytes(l)
	values, scales = values[r/TileRows*v:][:v], scales[r/TileRows*s:][:s]
	for i := range b.factors(l.Cols) {
		copy(m.rowOf(to)[4*i:][:4], scales[4*(i*TileRows+r%TileRows):])
	}
	scales = scales[b.factorBytes(l.Cols):]
	for i, block := range m.rowBlocks(to) {
		b.UnpackBlock(block, values[i*b.values:], scales[i*b.small:], r%TileRows)
	}
}

// UnpackBlock restores the block of row r of 16 from its lines.
func (b blockBands) UnpackBlock(block, values, scales []byte, r int) {
	clear(block)
	for j := range b.fields {
		f := &b.fields[j]
		at := f.to + uint32(r)*uint32(f.stride)
		from := values
		if f.small {
			from = scales
		}
		block[f.from] |= from[at>>3] >> (at & 7) & f.mask << f.shift
	}
}

// BandBlock is the size of a block of 16 rows on a CPU: its lines and what is with the scales.
func (e *Encoding) BandBlock() (values, scales int) {
	b := e.packings[CPU].(blockBands)
	return b.values, b.small
}

// UnpackBlock restores the file's block of row r (of 16) from a block of 16 rows on a CPU.
func (e *Encoding) UnpackBlock(block, values, scales []byte, r int) {
	e.packings[CPU].(blockBands).UnpackBlock(block, values, scales, r)
}
