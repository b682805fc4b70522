package tokenizer

import (
	"hash/maphash"
	"math/bits"
)

// maxID bounds token ids, and with them the tables indexed by id.
const maxID = 1<<22 - 1

// vocab maps token texts to ids and back: all texts in one blob, an index by id, and an
// open-addressed hash table of ids. A map[string]int32 of 262,144 tokens would take three times the
// memory and load time.
type vocab struct {
	blob  []byte
	spans []textSpan // by id; to == 0 where an id has no token
	count int
	seed  maphash.Seed
	slots []vocabSlot // a power of two, at most 3/4 full
}

// textSpan is blob[from:to]. Blob has a byte in front that belongs to no token, so that an empty
// token still differs from no token.
type textSpan struct{ from, to uint32 }

// vocabSlot holds id + 1, 0 if free, and the upper half of the hash, which spares most looks into
// the blob.
type vocabSlot struct {
	hash uint32
	next int32
}

func newVocab() *vocab {
	return &vocab{blob: make([]byte, 1, 1<<16), seed: maphash.MakeSeed()}
}

// has reports whether id has a token.
func (v *vocab) has(id int32) bool {
	return id >= 0 && int(id) < len(v.spans) && v.spans[id].to != 0
}

// bytes returns the text of a token, which the caller must not change.
func (v *vocab) bytes(id int32) []byte { s := v.spans[id]; return v.blob[s.from:s.to:s.to] }

// text returns the text of a token.
func (v *vocab) text(id int32) string { return string(v.bytes(id)) }

// put assigns to id the text blob[from:], which the caller has just appended. The hash table does
// not know it until index is called.
func (v *vocab) put(id int32, from int) {
	for int(id) >= len(v.spans) {
		v.spans = append(v.spans, textSpan{})
	}
	v.spans[id] = textSpan{uint32(from), uint32(len(v.blob))}
	v.count++
}

// index builds the hash table. It returns an id whose text an other id has as well, -1 if there is
// none; in that case the table holds only one of them.
func (v *vocab) index() (twice int32) {
	v.slots = make([]vocabSlot, 1<<bits.Len(uint(v.count*4/3+1)))
	twice = -1
	for id := range v.spans {
		if v.spans[id].to == 0 {
			continue
		}
		text := v.bytes(int32(id))
		h := maphash.Bytes(v.seed, text)
		mask := uint64(len(v.slots) - 1)
		i := h & mask
		for ; v.slots[i].next != 0; i = (i + 1) & mask {
			if s := v.slots[i]; s.hash == uint32(h>>32) && string(v.bytes(s.next-1)) == string(text) {
				twice = int32(id)
				break
			}
		}
		if v.slots[i].next == 0 {
			v.slots[i] = vocabSlot{uint32(h >> 32), int32(id) + 1}
		}
	}
	return twice
}

// hash returns the hash that find wants. The encoder uses it for its cache as well.
func (v *vocab) hash(text string) uint64 { return maphash.String(v.seed, text) }

// find returns the id of text, whose hash is h.
func (v *vocab) find(text string, h uint64) (int32, bool) {
	mask := uint64(len(v.slots) - 1)
	for i := h & mask; v.slots[i].next != 0; i = (i + 1) & mask {
		if s := v.slots[i]; s.hash == uint32(h>>32) && string(v.bytes(s.next-1)) == text {
			return s.next - 1, true
		}
	}
	return 0, false
}

// findBytes is find for bytes.
func (v *vocab) findBytes(text []byte) (int32, bool) {
	h := maphash.Bytes(v.seed, text)
	mask := uint64(len(v.slots) - 1)
	for i := h & mask; v.slots[i].next != 0; i = (i + 1) & mask {
		if s := v.slots[i]; s.hash == uint32(h>>32) && string(v.bytes(s.next-1)) == string(text) {
			return s.next - 1, true
		}
	}
	return 0, false
}

// id returns the id of text.
func (v *vocab) id(text string) (int32, bool) { return v.find(text, v.hash(text)) }
