// Package spans lays out the sequences of a batch in a GPU's memory. A step's launches are
// recorded once and replayed, so kernels read values that differ from step to step (rows,
// lengths, block tables, the amount of work) from this table, which the host writes and copies
// once per batch. kernels/cuda/src/spans.cuh reads it.
package spans

import "krater/kernels/device"

// A table consists of 32-bit words: a head of HeadWords, a record of RecordWords for each span,
// the prompts' first, then for each span its slot and its block table.
//
// Head: 0 prompts, 1 generated rows, 2 items of decode, 3 tiles of prompts' rows, 4 keys
// of the prompts.
//
// Record: 0 row, 1 rows, 2 position of the first row, 3 index in the table of its first
// block (of one that is there if a table begins later: below 0 then, maybe), 4 blocks, and then
// of a prompt: 5 its first key among all prompts' keys, 6 its first tile, 7 tiles;
// of a generated row: 5 tiles of keys, 6 its first item, 7 items.
const (
	HeadWords   = 8
	RecordWords = 8
)

const (
	headPrefill = iota
	headDecode
	headItems
	headTiles
	headKeys
)

// KeyTile is the number of keys that attention reads at a time. Tiles begin at multiples of it in
// a sequence, wherever the batch begins, so a row's sums always have one order.
const KeyTile = 64

// KeyAlign is the multiple to which the number of a prompt's keys is rounded: the largest tile of
// any kernel.
const KeyAlign = 128

// RowTile is the number of rows of a prompt per tile of work.
const RowTile = 128

// A generated row's keys are cut into items for several blocks. Items have whole tiles and are as
// equal as possible: item i of n has tiles i*T/n to (i+1)*T/n of T. Only the row's own length
// decides, so its bits do not depend on the batch. Short items let a single row use many blocks.
// If there are many rows, blocks take several items at a time and sum groups of ItemGroup
// (spans.cuh): so a row has whole groups, if it is long enough for one.
const (
	ItemsMax  = 128
	ItemGroup = 8
)

// OneItem is the largest window whose keys are one item: one block reads so few without help, and
// nothing has to be joined.
const OneItem = 512

// Words returns the size of a table for that many spans with that many blocks in all.
func Words(spans, blocks int) int { return HeadWords + spans*(RecordWords+1) + blocks }

// KeyTiles returns the number of tiles of ctx keys.
func KeyTiles(ctx int) int { return (ctx + KeyTile - 1) / KeyTile }

// Items returns the number of items of ctx keys.
func Items(ctx int) int {
	t := KeyTiles(ctx)
	if t < ItemGroup {
		return t
	}
	return min(ItemsMax, t/ItemGroup*ItemGroup)
}

// ItemBound returns the most items of a row with at most context keys.
func ItemBound(context int) int { return Items(context) }

// WindowBound returns the most items of a row that sees at most its last window keys; the kernels
// divide a window's tiles themselves.
func WindowBound(window int) int {
	if window <= OneItem {
		return 1
	}
	return Items((KeyTiles(window-1) + 1) * KeyTile)
}

// Keys returns the number of keys of s, rounded up to a multiple of KeyAlign.
func Keys(s *device.Span) int { return (s.Pos + s.Len + KeyAlign - 1) / KeyAlign * KeyAlign }

// Tiles returns the number of tiles of rows of s.
func Tiles(s *device.Span) int { return (s.Len + RowTile - 1) / RowTile }

// Put writes the table of a batch to dst, which has room for Words of it, and returns its length.
func Put(dst []int32, prefill, decode []device.Span) int {
	at := HeadWords + (len(prefill)+len(decode))*RecordWords
	keys, tiles, items := 0, 0, 0
	for i := range prefill {
		s := &prefill[i]
		k, t := Keys(s), Tiles(s)
		at = put(dst, i, at, s, keys, tiles, t)
		keys, tiles = keys+k, tiles+t
	}
	for i := range decode {
		s := &decode[i]
		ctx := s.Pos + s.Len
		n := Items(ctx)
		at = put(dst, len(prefill)+i, at, s, KeyTiles(ctx), items, n)
		items += n
	}
	head := dst[:HeadWords]
	clear(head)
	head[headPrefill], head[headDecode] = int32(len(prefill)), int32(len(decode))
	head[headItems], head[headTiles], head[headKeys] = int32(items), int32(tiles), int32(keys)
	return at
}

// put writes record i, and its slot and blocks from word at on, and returns the index of the word after
// them.
func put(dst []int32, i, at int, s *device.Span, five, first, count int) int {
	r := dst[HeadWords+i*RecordWords:][:RecordWords]
	r[0], r[1], r[2] = int32(s.Row), int32(s.Len), int32(s.Pos)
	dst[at] = int32(s.Slot)
	at++
	r[3], r[4] = int32(at-s.Skip), int32(s.Skip+len(s.Blocks))
	r[5], r[6], r[7] = int32(five), int32(first), int32(count)
	return at + copy(dst[at:at+len(s.Blocks)], s.Blocks)
}
