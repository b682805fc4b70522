package spans

import (
	"slices"
	"testing"

	"krater/kernels/device"
)

func TestPut(t *testing.T) {
	prefill := []device.Span{
		{Row: 0, Len: 200, Pos: 0, Slot: 21, Blocks: []int32{7, 3, 9, 1}},
		{Row: 201, Len: 1, Pos: 64, Blocks: []int32{4, 5}},
	}
	decode := []device.Span{{Row: 200, Len: 1, Pos: 300, Slot: 22, Blocks: []int32{2, 6, 8, 10, 11}}, {Row: 202, Len: 1, Pos: 0, Blocks: []int32{12}}}
	dst := make([]int32, Words(4, 12)+1)
	dst[len(dst)-1] = -77
	n := Put(dst, prefill, decode)
	if n != Words(4, 12) || dst[n] != -77 {
		t.Fatalf("%d words, %d expected; the word after is %d", n, Words(4, 12), dst[n])
	}
	want := []int32{2, 2, 6, 3, 384, 0, 0, 0,
		0, 200, 0, 41, 4, 0, 0, 2,
		201, 1, 64, 46, 2, 256, 2, 1,
		200, 1, 300, 49, 5, 5, 0, 5,
		202, 1, 0, 55, 1, 1, 5, 1,
		21, 7, 3, 9, 1, 0, 4, 5, 22, 2, 6, 8, 10, 11, 0, 12}
	if !slices.Equal(dst[:n], want) {
		t.Errorf("got  %v\nwant %v", dst[:n], want)
	}
}

// A bound holds for every length; no item is empty, and a row that has a whole group consists of
// whole groups.
func TestItems(t *testing.T) {
	most := 0
	for ctx := 1; ctx <= 200000; ctx += 1 + ctx/1000 {
		tiles, n := KeyTiles(ctx), Items(ctx)
		most = max(most, n)
		if n < 1 || n > tiles || n > ItemsMax || n%ItemGroup != 0 && n > ItemGroup || n < tiles-ItemGroup && n < ItemsMax {
			t.Fatalf("%d keys: %d items of %d tiles", ctx, n, tiles)
		}
		if w := WindowBound(ctx); ctx > OneItem && w < n {
			t.Fatalf("a window of %d keys: %d items, at most %d were promised", ctx, n, w)
		}
		if most > ItemBound(ctx) {
			t.Fatalf("up to %d keys: %d items, at most %d were promised", ctx, most, ItemBound(ctx))
		}
	}
}
