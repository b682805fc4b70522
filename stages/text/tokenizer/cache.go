package tokenizer

import "sync/atomic"

const (
	cacheSlots  = 1 << 15 // pairs of slots; about 2.5 MB when full
	cacheKeyMax = 30      // bytes of a word
	cacheIDsMax = 8       // tokens of a word
)

// cacheEntry is one word with its tokens, a cache line of memory. It never changes after it is in
// the cache.
type cacheEntry struct {
	keyLen, idsLen uint8
	key            [cacheKeyMax]byte
	ids            [cacheIDsMax]int32
}

// wordCache remembers the tokens of short words. Its size is fixed: a new word moves the younger of
// the two in its bucket to the second slot, and the older out. Readers and writers need no lock, a
// slot is one pointer.
type wordCache struct {
	slots [cacheSlots]atomic.Pointer[cacheEntry]
}

// get returns the entry of word, whose hash is h, or nil.
func (c *wordCache) get(word string, h uint64) *cacheEntry {
	i := h & (cacheSlots - 2)
	if e := c.slots[i].Load(); e != nil && string(e.key[:e.keyLen]) == word {
		return e
	}
	if e := c.slots[i|1].Load(); e != nil && string(e.key[:e.keyLen]) == word {
		return e
	}
	return nil
}

// put remembers the tokens of word if both are short enough.
func (c *wordCache) put(word string, h uint64, ids []int32) {
	if len(word) > cacheKeyMax || len(ids) > cacheIDsMax {
		return
	}
	e := &cacheEntry{keyLen: uint8(len(word)), idsLen: uint8(len(ids))}
	copy(e.key[:], word)
	copy(e.ids[:], ids)
	i := h & (cacheSlots - 2)
	c.slots[i|1].Store(c.slots[i].Load())
	c.slots[i].Store(e)
}
