package load

import (
	"fmt"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights/quant"
)

// Precision says in how many bits the parts of a model are kept: 4 or 8, or 0 for
// what its files hold. Norms, the router and the embedding stay as they are.
type Precision struct {
	Experts   int
	Attention int  // projections but kv_b
	KVB       int  // kv_b_proj
	Shared    int  // shared experts
	Dense     int  // the network of dense layers
	Head      int  // lm_head
	tiles     bool // integers are kept in format A, as on an accelerator
	// Group is the number of columns that share a scale: 32, 64, 128, or 0 for a whole
	// row. One for all parts, so that what several of them read is quantised once.
	Group int
}

// Integer reports whether any part is kept as integers.
func (p Precision) Integer() bool {
	return p.Experts|p.Attention|p.KVB|p.Shared|p.Dense|p.Head != 0
}

// format is the format of a matrix [rows, cols] kept in bits.
func (p Precision) format(bits, rows, cols int) (tensor.FormatB, error) {
	return quant.Spec{Bits: bits, Group: p.Group}.Format(rows, cols)
}

// quantGroup is what stages.Limits.QuantGroup has to be.
func (p Precision) quantGroup(cfg *model.Config) (int, error) {
	if !p.Integer() {
		return 0, nil
	}
	f, err := p.format(8, 1, cfg.Hidden)
	return f.Group, err
}

// check refuses what cfg cannot be kept in.
func (p Precision) check(cfg *model.Config) error {
	for _, x := range []struct {
		part        string
		bits, width int // rows of gate and of up, of a network
	}{
		{"experts", p.Experts, cfg.MoE.FF}, {"attention", p.Attention, 0}, {"kv_b_proj", p.KVB, 0},
		{"shared experts", p.Shared, cfg.MoE.SharedFF}, {"dense MLP", p.Dense, cfg.DenseFF()}, {"lm_head", p.Head, 0},
	} {
		if x.bits == 0 {
			continue
		}
		if err := (quant.Spec{Bits: x.bits, Group: p.Group}).Check(); err != nil {
			return fmt.Errorf("load: %s: %w", x.part, err)
		}
		if x.width%tensor.TileRows != 0 {
			return fmt.Errorf("load: %s of width %d cannot be kept as integers: want a multiple of %d", x.part, x.width, tensor.TileRows)
		}
	}
	return nil
}

// bits is what a part's matrices are kept in, 0: as they are.
func (p Precision) bits(part model.Part) int {
	switch part {
	case model.Attention:
		return p.Attention
	case model.KVB:
		return p.KVB
	case model.DenseFFN:
		return p.Dense
	case model.Experts:
		return p.Experts
	case model.Shared:
		return p.Shared
	case model.Head:
		return p.Head
	}
	return 0
}

// Integers reports whether a tensor of the model is kept as integers: Model asks
// for its shape then, and for its values only if the store does not have them.
func (p Precision) Integers(t model.TensorSpec) bool { return len(t.Shape) == 2 && p.bits(t.Part) != 0 }

// kept names a precision.
func kept(bits int, dt tensor.DType) string {
	if bits == 0 {
		return dt.String()
	}
	return fmt.Sprintf("INT%d", bits)
}

// matrixBytes is what a matrix [rows, cols] takes in bits.
func (p Precision) matrixBytes(bits, rows, cols int) int64 {
	f, err := p.format(bits, rows, cols)
	if err != nil {
		return 0 // refused by check
	}
	if p.tiles {
		a := tensor.FormatA{Rows: rows, Cols: cols, Bits: bits, Group: f.Group}
		return plus(times(a.TileRows(), a.TileCols(), a.TileBytes()), times(2*tensor.TileA, a.TileRows(), a.Groups()))
	}
	return plus(times(f.Tiles(), f.TileBytes()), times(2*tensor.TileRows, f.Tiles(), f.Groups()))
}

// tensorBytes is what a tensor takes, of type dt where it stays as it is.
func (p Precision) tensorBytes(t model.TensorSpec, dt tensor.DType) (n int64) {
	bits := p.bits(t.Part)
	switch {
	case !p.Integers(t):
		return times(append([]int{dt.Size()}, t.Shape...)...)
	case t.Cut == nil:
		return p.matrixBytes(bits, t.Shape[0], t.Shape[1])
	}
	for _, c := range t.Cut {
		n = plus(n, times(c.Count, int(p.matrixBytes(bits, c.Rows, c.Cols))))
	}
	return n
}

// inner is what an attention block keeps of rows as integers.
func (p Precision) inner(m model.Mixer, rows int) int {
	if p.Attention == 0 || p.tiles {
		return 0
	}
	n := 0
	for _, x := range m.Scratch() {
		if f, err := p.format(8, 1, x.Width); x.Product && x.Width > 0 && err == nil {
			n += device.QRowsBytes(rows, x.Width, f.Group)
		}
	}
	return n
}

// Store keeps integer matrices from one load to the next.
type Store interface {
	// Matrix gives the matrix name in format f on the device. make is called if
	// it is not there yet.
	Matrix(name string, f tensor.FormatB, make func() (*quant.Matrix, error)) (device.QMat, error)
}

// memory is the Store of those who keep nothing: every matrix is made anew.
type memory struct {
	dev   device.Device
	parts *Parts
}

func (m memory) Matrix(name string, f tensor.FormatB, make func() (*quant.Matrix, error)) (device.QMat, error) {
	x, err := make()
	if err != nil {
		return device.QMat{}, err
	}
	q, err := Upload(m.dev, x, &m.parts.bufs)
	if err == nil {
		m.parts.MadeBytes += int64(q.Values.Size())
	}
	return q, err
}

// Upload packs x into memory of dev; the buffers it allocates are added to bufs.
func Upload(dev device.Device, x *quant.Matrix, bufs *[]device.Buffer) (device.QMat, error) {
	const line = 64
	f := x.FormatB
	scaleAt := (f.ValueBytes() + line - 1) / line * line
	n := scaleAt + f.ScaleBytes()
	buf, err := dev.Alloc(n)
	if err != nil {
		return device.QMat{}, err
	}
	*bufs = append(*bufs, buf)
	host := buf.Host()
	if host == nil {
		host = make([]byte, n)
	}
	f.Pack(host, x.Values)
	f.PackScales(host[scaleAt:], x.Scales)
	if buf.Host() == nil {
		s, err := dev.NewStream()
		if err != nil {
			return device.QMat{}, err
		}
		s.CopyIn(device.NewMat(buf, tensor.U8, 1, n), host)
		if err := s.Synchronize(); err != nil {
			return device.QMat{}, err
		}
	}
	return device.QMat{FormatB: f, Values: buf, Scales: buf, ScaleAt: scaleAt}, nil
}
