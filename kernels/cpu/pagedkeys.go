package cpu

import (
	"unsafe"

	"krater/kernels/cpu/convert"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// kvCache is a device.KV that was checked.
type kvCache struct {
	rows     unsafe.Pointer
	dt       tensor.DType
	rowBytes int      // from a row to the next
	scales   *float32 // of I8
	scaleRow int      // values from a row's scales to the next
	group    int      // columns of a scale
}

// newKVCache checks a cache of rows of width values. parts are the parts of a row; groups of I8
// divide each of them.
func newKVCache(op string, c *device.KV, width int, parts ...int) kvCache {
	if c.Cols != width {
		fail(op, "cache is %s, need %d columns", c.Mat, width)
	}
	k := kvCache{dt: c.DType, rowBytes: c.Stride * c.DType.Size()}
	switch c.DType {
	case tensor.BF16, tensor.F32, tensor.F8E4M3:
	case tensor.I8:
		if c.Group < 1 {
			fail(op, "cache has scales of %d columns", c.Group)
		}
		for _, n := range parts {
			if n%c.Group != 0 {
				fail(op, "cache has scales of %d columns, which do not divide %d", c.Group, n)
			}
		}
		k.scales = f32(op, "scales of the cache", &c.Scales, c.Rows, width/c.Group)
		k.scaleRow, k.group = c.Scales.Stride, c.Group
	default:
		fail(op, "cache is %s, need BF16, F32, F8E4M3 or I8", c.Mat)
	}
	k.rows = at(op, "cache", &c.Mat)
	return k
}

// row is where a row is.
func (k *kvCache) row(slot int) unsafe.Pointer { return unsafe.Add(k.rows, slot*k.rowBytes) }

// rowScales returns the position of a row's scales.
func (k *kvCache) rowScales(slot int) *float32 { return rowAt(k.scales, k.scaleRow, slot) }

// store writes a row of n values.
func (k *kvCache) store(c *convert.Funcs, slot int, from *float32, n int) {
	to := k.row(slot)
	switch k.dt {
	case tensor.BF16:
		c.Narrow((*uint16)(to), from, n)
	case tensor.F8E4M3:
		c.NarrowF8((*uint8)(to), from, n)
	case tensor.I8:
		c.QuantI8((*int8)(to), from, k.rowScales(slot), k.group, n/k.group)
	default:
		copy(unsafe.Slice((*float32)(to), n), unsafe.Slice(from, n))
	}
}

// bf16 reports what the tiles read: BF16, the cache's own rows or float8 widened, which is exact;
// else F32, the cache's own rows or integers times their scale.
func (k *kvCache) bf16() bool { return k.dt == tensor.BF16 || k.dt == tensor.F8E4M3 }

// narrow reports whether rows have to be widened for the tiles.
func (k *kvCache) narrow() bool { return k.dt.Size() == 1 }

// wideRow returns the size in bytes of n widened values of a row, in the layout that the tiles
// read.
func (k *kvCache) wideRow(n int) int {
	if k.bf16() {
		return 2 * convert.Padded(n)
	}
	return 4 * convert.Padded(n)
}

// wideBlock returns the scratch that n columns of a block of keys take, in float32 values: none if
// the tiles read the cache in place.
func (k *kvCache) wideBlock(n int) int {
	if !k.narrow() {
		return 0
	}
	return keyBlock * k.wideRow(n) / 4
}

// widen turns columns [first, first+n) of rows rows from slot on into what the tiles read. first
// and n are multiples of the group.
func (k *kvCache) widen(c *convert.Funcs, dst unsafe.Pointer, slot, rows, first, n int) {
	if k.dt == tensor.F8E4M3 {
		c.WidenF8((*uint16)(dst), (*uint8)(unsafe.Add(k.row(slot), first)), n, rows, k.rowBytes)
		return
	}
	c.WidenI8((*float32)(dst), (*int8)(unsafe.Add(k.row(slot), first)), shift(k.rowScales(slot), first/k.group),
		k.group, n/k.group, rows, k.rowBytes, 4*k.scaleRow)
}

// keyRows are some columns of the cached rows of a block of keys, as the tiles read them: in the
// cache, or widened.
type keyRows struct {
	wide         unsafe.Pointer // rows from position from on; nil: in the cache
	from, offset int            // offset: bytes from the start of a row in the cache
	stride       int            // bytes
}

// keys returns columns [first, first+n) of positions [from, to), at most keyBlock. If they have to
// be widened, they are in scratch, wideBlock(n) values.
func (a *paged) keys(s *device.Span, from, to, first, n int, scratch *float32) keyRows {
	if !a.kv.narrow() {
		return keyRows{offset: first * a.kv.dt.Size(), stride: a.kv.rowBytes}
	}
	k := keyRows{wide: unsafe.Pointer(scratch), from: from, stride: a.kv.wideRow(n)}
	for pos := from; pos < to; {
		slot, count := a.run(s, pos, to)
		a.kv.widen(a.dev.convert, unsafe.Add(k.wide, (pos-from)*k.stride), slot, count, first, n)
		pos += count
	}
	return k
}

// rows returns the longest stretch of rows from position pos, at most end, that lie one after the
// other.
func (a *paged) rows(k *keyRows, s *device.Span, pos, end int) (rows unsafe.Pointer, n int) {
	if k.wide != nil {
		return unsafe.Add(k.wide, (pos-k.from)*k.stride), end - pos
	}
	slot, n := a.run(s, pos, end)
	return unsafe.Add(a.kv.row(slot), k.offset), n
}
