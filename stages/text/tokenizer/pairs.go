package tokenizer

import "math/bits"

// noMerge is the value of a pair that does not merge: more than any other.
const noMerge = ^uint64(0)

// pairTable holds the merges: which two neighbouring tokens become which one, and in what order.
// Almost all encoding time that is not splitting goes by in its lookups, most of them in vain,
// hence open addressing in one array, and a filter in front of it that fits a second-level cache
// where the array does not.
type pairTable struct {
	slots  []pairSlot
	filter []uint64 // eight bits a slot, one set for each merge
	shift  uint8    // 64 - log2 of the slots
	count  int
}

// pairSlot's key is (left + 1) << 32 | right, 0 if the slot is free. Its value is rank << 32 | id
// of the merged token: the smallest value merges first.
type pairSlot struct{ key, value uint64 }

// newPairTable makes a table with room for count merges without growing.
func newPairTable(count int) *pairTable {
	t := &pairTable{}
	t.resize(max(4, bits.Len(uint(count+count*2/3))))
	return t
}

func (t *pairTable) resize(log2 int) {
	old := t.slots
	t.slots, t.shift, t.count = make([]pairSlot, 1<<log2), uint8(64-log2), 0
	t.filter = make([]uint64, 1<<log2*8/64)
	for _, s := range old {
		if s.key != 0 {
			t.put(s.key, s.value)
		}
	}
}

func pairKey(left, right int32) uint64 { return uint64(left+1)<<32 | uint64(uint32(right)) }

// pairHash spreads a key over the upper bits: the first ones choose the slot, with three more the
// bit of the filter. The halves of the key are folded before the multiplication, or the left token
// would not reach the upper bits.
func pairHash(key uint64) uint64 { return (key ^ key>>29) * 0x9E3779B97F4A7C15 }

// set adds a merge. Of two for the same pair the later counts.
func (t *pairTable) set(left, right, id int32, rank int) {
	if (t.count+1)*5 > len(t.slots)*3 {
		t.resize(65 - int(t.shift))
	}
	t.put(pairKey(left, right), uint64(rank)<<32|uint64(uint32(id)))
}

func (t *pairTable) put(key, value uint64) {
	h := pairHash(key)
	bit := h >> (t.shift - 3)
	t.filter[bit>>6] |= 1 << (bit & 63)
	mask := uint64(len(t.slots) - 1)
	i := h >> t.shift
	for ; t.slots[i].key != 0; i = (i + 1) & mask {
		if t.slots[i].key == key {
			t.slots[i].value = value
			return
		}
	}
	t.slots[i] = pairSlot{key, value}
	t.count++
}

// get returns the value of a pair, noMerge if it does not merge.
func (t *pairTable) get(left, right int32) uint64 {
	key := pairKey(left, right)
	h := pairHash(key)
	if bit := h >> (t.shift - 3); t.filter[bit>>6]>>(bit&63)&1 == 0 {
		return noMerge
	}
	mask := uint64(len(t.slots) - 1)
	for i := h >> t.shift; ; i = (i + 1) & mask {
		switch s := &t.slots[i&mask]; s.key {
		case key:
			return s.value
		case 0:
			return noMerge
		}
	}
}
