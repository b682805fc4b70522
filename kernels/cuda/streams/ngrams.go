package streams

import (
	"fmt"

	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// The kernels of src/ngrams.cu.
var (
	kNGramRows = launch.Named("kr_ngram_rows")
	kNGramCopy = launch.Named("kr_ngram_copy")
	kTapConv   = map[tensor.DType]launch.Kernel{tensor.BF16: launch.Named("kr_tap_conv_bf16"), tensor.F32: launch.Named("kr_tap_conv_float")}
)

const (
	orderMost = 16
	reachMost = 128 // rows of a prompt that one thread computes
)

// CheckReach names a convolution that reaches too far back.
func CheckReach(p device.TapConv) error {
	if p.Taps > 0 && p.Reach() > reachMost {
		return fmt.Errorf("a convolution over %d tokens (ple_conv_kernel_size %d, ngram_size %d), a GPU takes at most %d", p.Reach(), p.Taps, p.Step, reachMost)
	}
	return nil
}

// wide panics unless m is F32 [rows, cols] without gaps.
func wide(op, name string, m launch.Mat, rows, cols int) {
	if floats(op, name, m, rows, cols); m.DType != tensor.F32 || !m.Dense() {
		refuse(op, "%s is %v, need dense F32 [%d, %d]", name, m, rows, cols)
	}
}

// NGrams copies the rows of a table [size, p.Dim] that the rows of a batch read to out [T, p.Width], and their numbers to rows [T, p.Heads]
// I32, for the spans of list, whose table is at spans. ids are [T, 1] I32, words [1, n] I32 is p.Words, and tail [slots*p.Order, 1] F32 keeps the
// newest ids of each sequence. The table may lie in host memory that the GPU reads.
func NGrams(l *launch.List, out, rows, ids, from, words, tail launch.Mat, list []device.Span, table launch.Mat, decode bool, p *device.NGrams) {
	const op = "NGrams"
	heads := p.Heads()
	floats(op, "out", out, ids.Rows, p.Width())
	floats(op, "the table", from, from.Rows, p.Dim)
	wide(op, "tail", tail, tail.Rows, 1)
	switch {
	case p.Order < 2 || p.Order > orderMost || heads < 1 || p.Dim < 1 || uint64(from.Rows) < p.Rows():
		refuse(op, "the table is %v, sizes %+v", from, p)
	case rows.DType != tensor.I32 || rows.Rows != ids.Rows || rows.Cols != heads || !rows.Dense() || ids.DType != tensor.I32 || ids.Cols != 1 || !ids.Dense():
		refuse(op, "rows are %v, ids %v", rows, ids)
	case words.DType != tensor.I32 || words.Cols != len(p.Words()) || !from.Dense() || table.Zero() || table.DType != tensor.I32:
		refuse(op, "%v words, the table %v, spans %v", words, from, table)
	}
	if len(list) == 0 {
		return
	}
	flag := launch.I32(0)
	if decode {
		flag = launch.I32(1)
	}
	l.Add(kNGramRows, launch.Config{Grid: launch.Dim{X: uint32(len(list))}, Block: launch.Dim{X: 256}, PDL: true},
		launch.P(rows.At), launch.P(ids.At), launch.P(tail.At), launch.P(table.At), flag, launch.I32(tail.Rows/p.Order), launch.I32(p.Order),
		launch.I32(p.PerOrder), launch.I32(int(p.EOS)), launch.P(words.At))
	const warps = 8
	vec := elem.Chunks(out, from) && p.Dim%8 == 0
	l.Add(kNGramCopy, launch.Config{Grid: launch.Dim{X: uint32(ids.Rows), Y: uint32((heads + warps - 1) / warps)}, Block: launch.Dim{X: 32 * warps}, PDL: true},
		launch.P(out.At), launch.I32(out.Stride), launch.P(from.At), launch.I32(from.Rows), launch.P(rows.At), launch.P(table.At), flag,
		launch.I32(heads), launch.I32(p.Dim), flags(vec, out, from))
}

// TapConv computes out [T, C] = silu of the convolution w [Taps, C] F32 of x [T, C], of one type, for the spans of list, whose table is at
// table; tail [slots*Reach, C] F32 keeps the newest rows of each sequence. x and out are not the same.
func TapConv(l *launch.List, out, x, w, tail launch.Mat, list []device.Span, table launch.Mat, decode bool, p device.TapConv) {
	const op = "TapConv"
	floats(op, "out", out, x.Rows, x.Cols)
	floats(op, "x", x, x.Rows, x.Cols)
	wide(op, "w", w, p.Taps, x.Cols)
	wide(op, "tail", tail, tail.Rows, x.Cols)
	if err := CheckReach(p); err != nil || p.Taps < 1 || p.Step < 1 || out.DType != x.DType || table.Zero() || table.DType != tensor.I32 {
		refuse(op, "out %v, x %v, sizes %+v, spans %v", out, x, p, table)
	}
	tiles, flag := 0, launch.I32(0)
	if decode {
		tiles, flag = len(list), launch.I32(1)
	} else {
		for i := range list {
			tiles += spans.Tiles(&list[i])
		}
	}
	if tiles == 0 {
		return
	}
	const threads = 128
	l.Add(kTapConv[x.DType], launch.Config{Grid: launch.Dim{X: uint32((x.Cols + threads - 1) / threads), Y: uint32(tiles)}, Block: launch.Dim{X: threads}, PDL: true},
		launch.P(out.At), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.P(w.At), launch.I32(w.Stride), launch.P(tail.At), launch.P(table.At),
		flag, launch.I32(tail.Rows/p.Reach()), launch.I32(p.Taps), launch.I32(p.Step), launch.I32(x.Cols))
}
