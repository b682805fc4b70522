package load

import (
	"fmt"
	"strings"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/model"
)

// Precision says how the parts of a model are kept: each in a format, the zero one as its files
// hold it. Norms, the router and the embedding stay as they are. On a device that multiplies
// quantised rows all formats have one group size, so that what several parts read is quantised
// once.
type Precision struct {
	Experts   tensor.Format
	Attention tensor.Format // projections but kv_b
	KVB       tensor.Format // kv_b_proj
	Shared    tensor.Format // shared experts
	Dense     tensor.Format // the network of dense layers
	Head      tensor.Format // lm_head

	kind tensor.Kind // of device
}

// PartFormat is the format of a part.
type PartFormat struct {
	Part   model.Part
	Name   string
	Format tensor.Format
}

// Parts are the parts that may have a format.
func (p Precision) Parts() []PartFormat {
	return []PartFormat{
		{model.Experts, "experts", p.Experts}, {model.Attention, "attention", p.Attention}, {model.KVB, "kv_b_proj", p.KVB},
		{model.Shared, "shared experts", p.Shared}, {model.DenseFFN, "dense MLP", p.Dense}, {model.Head, "lm_head", p.Head},
	}
}

// Any returns the first format among the parts, the zero one if all stay as their files hold them.
func (p Precision) Any() tensor.Format {
	for _, x := range p.Parts() {
		if !x.Format.Zero() {
			return x.Format
		}
	}
	return tensor.Format{}
}

// Integer reports whether any part has a format.
func (p Precision) Integer() bool { return !p.Any().Zero() }

// Key names the precision in names of files: equal keys, equal weights. Files made when only
// INT4 and INT8 existed have this text.
func (p Precision) Key() string {
	text, names := "{", [...]string{"Experts", "Attention", "KVB", "Shared", "Dense", "Head"}
	for i, x := range p.Parts() {
		kept := fmt.Sprint(x.Format.Bits())
		if e := x.Format.Encoding; e != nil && e != tensor.INT4 && e != tensor.INT8 {
			kept = e.Name()
		}
		text += names[i] + ":" + kept + " "
	}
	return fmt.Sprintf("%stiles:%v Group:%d}", text, p.kind == tensor.GPU, p.Any().Group)
}

// quantGroup returns the value that stages.Limits.QuantGroup must have.
func (p Precision) quantGroup(cfg *model.Config) int { return p.Any().Of(cfg.Hidden).Group }

// check returns an error if a part of cfg cannot be kept in its format.
func (p Precision) check(cfg *model.Config) error {
	width := map[model.Part]int{ // rows of gate and of up, of a network
		model.Experts: cfg.MoE.FF, model.Shared: cfg.MoE.SharedFF, model.DenseFFN: cfg.DenseFF(),
	}
	for _, x := range p.Parts() {
		if x.Format.Zero() {
			continue
		}
		switch f := x.Format; {
		case p.kind != tensor.GPU:
		case f.Encoding == tensor.Mixed:
			return fmt.Errorf("load: %s: no kernels of a GPU multiply experts in several formats of integers", x.Name)
		case x.Part != model.Experts && (f.Encoding == tensor.Native || f.Shared()):
			return fmt.Errorf("load: %s as %s: a GPU multiplies only routed experts in blocks of files", x.Name, f)
		}
		if _, err := x.Format.On(p.kind, tensor.TileRows, cfg.Hidden); err != nil && !x.Format.PerTensor() {
			return fmt.Errorf("load: %s: %w", x.Name, err)
		}
		if width[x.Part]%tensor.TileRows != 0 {
			return fmt.Errorf("load: %s of width %d cannot be kept as %s: want a multiple of %d", x.Name, width[x.Part], x.Format, tensor.TileRows)
		}
		if any := p.Any(); p.kind == tensor.CPU && x.Format.Group != any.Group {
			return fmt.Errorf("load: %s as %s beside %s: want one group size for all parts (--group-size)", x.Name, x.Format, any)
		}
	}
	return nil
}

// of returns the format of a part.
func (p Precision) of(part model.Part) tensor.Format {
	for _, x := range p.Parts() {
		if x.Part == part {
			return x.Format
		}
	}
	return tensor.Format{}
}

// Integers reports whether a tensor of the model is kept in a format: Model asks
// for its shape then, and for its values only if the store does not have them.
func (p Precision) Integers(t model.TensorSpec) bool {
	return len(t.Shape) == 2 && !p.of(t.Part).Zero()
}

// kept names what a part is kept in.
func kept(cfg *model.Config, p Precision, part model.Part) string {
	f := p.of(part)
	switch {
	case f.Zero():
		return KeptType(cfg, part).String()
	case f.Encoding == tensor.Native:
		return "as blocks of the files"
	case f.Encoding == tensor.Mixed:
		return "INT4 or INT8, by the type in the files"
	}
	return strings.ToUpper(f.Name())
}

// matrixBytes returns the size of a matrix [rows, cols] in a format, in bytes.
func (p Precision) matrixBytes(f tensor.Format, rows, cols int) int64 {
	l, err := f.On(p.kind, rows, cols)
	if err != nil {
		return 0 // refused by check
	}
	values, scales := l.BandBytes()
	return plus(times(l.Bands(), values), times(l.Bands(), scales))
}

// tensorBytes returns the size of a tensor once it is loaded.
func (p Precision) tensorBytes(cfg *model.Config, t model.TensorSpec) (n int64) {
	f := p.format(cfg, t.Part, t.Name)
	switch {
	case t.F32:
		return times(append([]int{tensor.F32.Size()}, t.Shape...)...)
	case !p.Integers(t) || f.Zero():
		return times(append([]int{KeptType(cfg, t.Part).Size()}, t.Shape...)...)
	case t.Cut == nil:
		return p.matrixBytes(f, t.Shape[0], t.Shape[1])
	}
	for _, c := range t.Cut {
		n = plus(n, times(c.Count, int(p.matrixBytes(f, c.Rows, c.Cols))))
	}
	return n
}

// inner returns the number of bytes in which an attention block keeps rows as integers.
func (p Precision) inner(m model.Mixer, rows int) int {
	if p.Attention.Zero() || p.kind == tensor.GPU {
		return 0
	}
	n := 0
	for _, x := range m.Scratch() {
		if x.Product && x.Width > 0 {
			n += device.QRowsBytes(rows, x.Width, p.Attention.Of(x.Width).Group)
		}
	}
	return n
}

// Store keeps packed matrices from one load to the next.
type Store interface {
	// Matrix returns the matrix name as f on the device. make is called if it is not there yet.
	Matrix(name string, f tensor.Layout, make func() (*tensor.Matrix, error)) (device.QMat, error)
}

// memory is the Store of those who keep nothing: every matrix is made anew.
type memory struct {
	dev   device.Device
	parts *Parts
}

func (m memory) Matrix(name string, f tensor.Layout, make func() (*tensor.Matrix, error)) (device.QMat, error) {
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

// Upload packs x for a CPU into memory of dev; the buffers it allocates are added to bufs.
func Upload(dev device.Device, x *tensor.Matrix, bufs *[]device.Buffer) (device.QMat, error) {
	f := tensor.Layout{Format: x.Format, Rows: x.Rows, Cols: x.Cols}
	scaleAt := aligned(f.ValueBytes())
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
	f.Pack(host, host[scaleAt:], x)
	if buf.Host() == nil {
		if err := device.Upload(dev, device.NewMat(buf, tensor.U8, 1, n), host); err != nil {
			return device.QMat{}, err
		}
	}
	return device.QMat{Layout: f, Values: buf, Scales: buf, ScaleAt: scaleAt}, nil
}
