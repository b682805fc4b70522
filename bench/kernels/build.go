package kernels

import (
	"fmt"
	"math"
	"time"

	"krater/bench/read"
	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// The experts of DeepSeek-V2-Lite: hidden size, inner size, experts of a token.
const hidden, inner, topK = 2048, 1408, 6

// formats are the formats to measure.
var formats = []tensor.Format{tensor.INT3.By(64), tensor.INT3.By(128), tensor.INT4.By(32), tensor.INT4.By(64), tensor.INT4.By(128), tensor.INT8.By(128)}

// fileFormats are the encodings of blocks of files.
func fileFormats() (list []tensor.Format) {
	for _, name := range tensor.StoredEncodings() {
		list = append(list, tensor.EncodingOf(name).By(tensor.BlockGroup))
	}
	return list
}

// FormatName is the name of a format in names of kernels.
func FormatName(f tensor.Format) string {
	if f == tensor.INT8.By(128) {
		return "int8" // the only one of its encoding
	}
	return f.String()
}

// LayerName is the name of the kernel that computes one expert of a layer, or with all a row's experts, in a step of a
// model whose other parts a GPU computes.
func LayerName(f tensor.Format, all bool) string {
	if all {
		return "layer_" + FormatName(f)
	}
	return "layer_one_" + FormatName(f)
}

// layerPause is the time that a GPU takes for the rest of a layer. Threads that wait for the next layer may fall asleep.
const layerPause = 50 * time.Microsecond

// matrix returns a weight matrix of rows x cols.
func matrix(f tensor.Format, rows, cols int) tensor.Layout {
	return tensor.Layout{Format: f, Rows: rows, Cols: cols}
}

// builder creates the kernels of a device.
type builder struct {
	set    *set
	dev    *cpu.Device
	stream device.Stream
	suffix string
	bufs   []device.Buffer
}

func (b *builder) close() {
	for _, buf := range b.bufs {
		buf.Free()
	}
}

// kernels lists GEMV for every format and, for the best level, also GEMM, and experts of one row and of
// several for the formats that can be made.
func (b *builder) kernels(rows []int, best bool) ([]*kernel, error) {
	var err error
	if b.stream, err = b.dev.NewStream(); err != nil {
		return nil, err
	}
	var list []*kernel
	add := func(k *kernel, e error) {
		k.name += b.suffix
		if list = append(list, k); err == nil {
			err = e
		}
	}
	for _, f := range formats {
		add(b.gemv(f))
	}
	for _, f := range fileFormats() {
		add(b.gemv(f))
	}
	if !best {
		return list, err
	}
	for _, f := range fileFormats() {
		for _, m := range rows {
			add(b.gemm(f, m))
		}
	}
	for _, f := range formats {
		if f != tensor.INT4.By(64) {
			add(b.experts("experts_"+FormatName(f), f, topK, 1))
			for _, n := range []int{1, topK} {
				k, e := b.experts(LayerName(f, n == topK), f, n, 1)
				k.pause = layerPause
				add(k, e)
			}
			for _, m := range rows {
				add(b.experts(fmt.Sprintf("experts_%s_m%d", FormatName(f), m), f, topK, m))
				add(b.gemm(f, m))
			}
		}
	}
	return list, err
}

func (b *builder) mat(dt tensor.DType, rows, cols int) (device.Mat, error) {
	m, err := device.AllocMat(b.dev, dt, rows, cols)
	if err == nil {
		b.bufs = append(b.bufs, m.Buf)
	}
	return m, err
}

// activations are rows of hidden values, as floats and as integers.
func (b *builder) activations(rows, group int) (x device.Mat, q device.QRows, err error) {
	if x, err = b.mat(tensor.F32, rows, hidden); err != nil {
		return x, q, err
	}
	v := x.F32s()
	for i := range v {
		v[i] = float32(math.Sin(float64(i*i%1009))) * 2
	}
	if q, err = device.AllocQRows(b.dev, rows, hidden, group); err != nil {
		return x, q, err
	}
	b.bufs = append(b.bufs, q.Q.Buf, q.Scale.Buf, q.Bias.Buf)
	b.dev.QuantizeRows(b.stream, q, x)
	return x, q, nil
}

// weights takes the next matrix of the working set.
func (b *builder) weights(f tensor.Layout) device.QMat {
	at := b.set.take(f.ValueBytes())
	return device.QMat{Layout: f, Values: b.set.bufs[0], ValueAt: at, Scales: b.set.bufs[1], ScaleAt: at / scaleShare}
}

// gemv multiplies one row by a matrix with the bytes of a window.
func (b *builder) gemv(f tensor.Format) (*kernel, error) {
	k := &kernel{name: "gemv_" + FormatName(f)}
	fb := matrix(f, read.WindowBytes*8/f.Bits()/hidden, hidden)
	_, q, err := b.activations(1, f.Group)
	if err != nil {
		return k, err
	}
	out, err := b.mat(tensor.F32, 1, fb.Rows)
	k.run = func() work {
		w := b.weights(fb)
		b.dev.MatMulQ(b.stream, out, q, w)
		return work{w.Bytes()}
	}
	return k, err
}

// gemm multiplies m rows by gate and up of one expert.
func (b *builder) gemm(f tensor.Format, m int) (*kernel, error) {
	k := &kernel{name: fmt.Sprintf("gemm_%s_m%d", FormatName(f), m), ops: 2 * float64(m) * 2 * inner * hidden}
	fb := matrix(f, 2*inner, hidden)
	_, q, err := b.activations(m, f.Group)
	if err != nil {
		return k, err
	}
	out, err := b.mat(tensor.F32, m, fb.Rows)
	k.run = func() work {
		w := b.weights(fb)
		b.dev.MatMulQ(b.stream, out, q, w)
		return work{w.Bytes()}
	}
	return k, err
}

// experts returns the work of n experts of a layer, which m rows take each: quantising the activations, gate and
// up, SiLU, down.
func (b *builder) experts(name string, f tensor.Format, n, m int) (*kernel, error) {
	k := &kernel{name: name}
	if m > 1 {
		k.ops = 2 * float64(n*m) * 3 * inner * hidden
	}
	up := matrix(f, 2*inner, hidden)
	down := matrix(f, hidden, inner)
	x, q, err := b.activations(m, f.Group)
	if err != nil {
		return k, err
	}
	out, err := b.mat(tensor.F32, m*n, hidden)
	bank, list := make([]device.QExpert, n), make([]device.ExpertRows, n)
	for i := range list {
		list[i].Expert = int32(i)
		for r := range m {
			list[i].Assign = append(list[i].Assign, int32(r*n+i))
		}
	}
	k.run = func() work {
		var w work
		for i := range bank {
			bank[i] = device.QExpert{W13: b.weights(up), W2: b.weights(down)}
			w.bytes += bank[i].W13.Bytes() + bank[i].W2.Bytes()
		}
		b.dev.QuantizeRows(b.stream, q, x)
		b.dev.ExpertsQ(b.stream, out, q, bank, list, n)
		return w
	}
	return k, err
}
