package gqa

import (
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var (
	kListSpans  = launch.Named("kr_list_spans")
	listKernels = func() map[kernelKey][2]launch.Kernel { // with 8 or 16 query heads of a group
		out := map[kernelKey][2]launch.Kernel{}
		for dt, name := range dtypeNames {
			for _, dim := range []int{128, 256} {
				out[kernelKey{dt, dim}] = [2]launch.Kernel{named("kr_gqa_lists8_"+name, dim), named("kr_gqa_lists16_"+name, dim)}
			}
		}
		return out
	}()
)

const listThreads = 256 // of listspans.cu

// Rows are some rows of a batch: the generated ones, or those of its prompts that see more than Least positions, Count of them from
// number First on.
type Rows struct {
	Decode       bool
	First, Count int
	Least        int
}

// checkLists panics unless chosen has lists for the rows of q.
func checkLists(chosen, q launch.Mat, p device.GQA) {
	lists := max(1, p.Lists)
	if chosen.Zero() || chosen.DType != tensor.I32 || chosen.Rows != q.Rows || chosen.Cols < lists || chosen.Cols%lists != 0 || p.KVHeads%lists != 0 || p.Window != 0 {
		refuse("chosen is %v, need I32 of %d rows with lists for %+v", chosen, q.Rows, p)
	}
}

// CanLists reports whether Lists takes these: what Decode takes, with heads of 128 or 256.
func CanLists(gpu launch.GPU, out, q launch.Mat, cache launch.KV, p device.GQA) bool {
	return CanDecode(gpu, out, q, cache, launch.Mat{}, p) && listKernels[kernelKey{cache.DType, p.HeadDim}] != [2]launch.Kernel{}
}

// ListItems bounds the items of work of rows with at most n positions in a list.
func ListItems(rows, n int) int { return rows * spans.ItemBound(n) }

// ListsScratch returns the scratch memory of Lists in bytes.
func ListsScratch(rows, items, n int, p device.GQA) int {
	return max(1, p.Lists)*4*listWords(rows, n) + DecodeScratch(items, p)
}

// listWords is the size of a table of rows that see n positions, each in a block of its own.
func listWords(rows, n int) int { return (spans.HeadWords + rows*(spans.RecordWords+n) + 63) &^ 63 }

// Lists is PlainLists for some rows of a batch, all of which are computed as generated ones, over the listed rows of the cache
// alone, of one in host memory by way of near. A row's lists have equally many positions. Rows have at most items of work, or with 0 a
// row is one item, which suits many rows; scratch has ListsScratch bytes, aligned to 256.
func Lists(l *launch.List, gpu launch.GPU, out, q launch.Mat, cache launch.KV, chosen, table launch.Mat, rows Rows, items int, scratch launch.Ptr, p device.GQA, near elem.Near) {
	check(out, q, &cache, table, p)
	checkLists(chosen, q, p)
	one := items == 0
	if !CanLists(gpu, out, q, cache, p) || rows.First < 0 || rows.Count > q.Rows || !one && items < rows.Count || scratch%256 != 0 {
		refuse("no kernel for rows %+v of out %v, q %v, cache %v", rows, out, q, cache.Mat)
	}
	if rows.Count == 0 {
		return
	}
	lists := max(1, p.Lists)
	n := chosen.Cols / lists
	words := listWords(rows.Count, n)
	l.Add(kListSpans, launch.Config{Grid: launch.Dim{X: uint32(rows.Count), Y: uint32(lists)}, Block: launch.Dim{X: listThreads}, PDL: true},
		launch.P(scratch), launch.I32(words), launch.P(table.At), launch.P(chosen.At), launch.I32(chosen.Stride), launch.I32(n),
		bit(rows.Decode), launch.I32(rows.First), launch.I32(rows.Least), bit(one), launch.I32(p.BlockTokens))
	if near.Width > 0 { // lists have the same rows there, each with the columns of its key heads
		cols := p.KVHeads / lists * p.HeadDim
		for i := range lists {
			near.Rows(l, scratch+launch.Ptr(4*words*i), rows.Count, &cache, i*cols, (p.KVHeads*p.HeadDim)+i*cols, cols)
		}
		cache = near.KV
	}
	own := launch.Mat{At: scratch, DType: tensor.I32, Rows: 1, Cols: words, Stride: words} // whose rows have as many items as those of the other lists
	var here launch.Ptr                                                                    // where attention itself writes rows
	if one {
		items, here = rows.Count, out.At
	}
	f := newFlow(gpu, cache, items, scratch+launch.Ptr(4*words*lists), p)
	f.groups = f.groups && !one
	two := listKernels[kernelKey{cache.DType, p.HeadDim}]
	f.d.attend = two[0]
	if f.d.heads > 8 {
		f.d.attend = two[1]
	}
	f.attend(l, false, q, cache, own, launch.I32(lists), launch.I32(words), launch.P(here), wide(out), launch.I32(out.Stride))
	if !one {
		f.join(l, out, launch.Mat{}, own, rows.Count)
	}
}
