package tokenizer

import "unicode/utf8"

// bpe is the model of a tokenizer.json: it turns a piece of text into tokens. After loading, only
// its cache changes.
type bpe struct {
	vocab *vocab     // keyed by the bytes of a token if byteLevel
	odd   *oddTokens // byteLevel only: tokens that spell no bytes
	pairs *pairTable
	cache *wordCache

	byteLevel bool
	bytes     [256]int32 // byteLevel: the token of each byte, -1 if none
	runes     *runeTable // else: the token of each character

	fallback     *[256]int32 // byte_fallback: the tokens <0x00> to <0xFF>
	unk          int32       // unk_token, -1 if none
	fuseUnk      bool        // fuse_unk: neighbouring unknowns are one token
	ignoreMerges bool        // ignore_merges: a piece in the vocabulary is that token

	bounds *boundTable // where a piece can be cut without a change of tokens; nil: nowhere
}

// oddTokens are tokens of a byte-level vocabulary with characters that spell no byte. They have ids
// and texts, but no text is encoded to them.
type oddTokens struct {
	ids   map[string]int32
	texts map[int32]string
}

// runeTable maps characters to tokens, in blocks of 256 characters.
type runeTable struct {
	blocks [(utf8.MaxRune + 1) / 256]*[256]int32 // id + 1
}

func (t *runeTable) put(r rune, id int32) {
	if t.blocks[r>>8] == nil {
		t.blocks[r>>8] = new([256]int32)
	}
	t.blocks[r>>8][r&0xFF] = id + 1
}

// get returns the token of r, -1 if it has none.
func (t *runeTable) get(r rune) int32 {
	if b := t.blocks[r>>8]; b != nil {
		return b[r&0xFF] - 1
	}
	return -1
}

// appendPiece appends the tokens of piece, which is valid UTF-8 unless the model is byte-level, to
// dst. Where sc.err is set then, some are missing.
func (m *bpe) appendPiece(dst []int32, piece string, sc *scratch) []int32 {
	if len(piece) == 0 {
		return dst
	}
	if m.bounds == nil {
		h := m.vocab.hash(piece)
		if m.ignoreMerges {
			if id, ok := m.vocab.find(piece, h); ok {
				return append(dst, id)
			}
		}
		return m.appendWord(dst, piece, h, sc)
	}
	if m.ignoreMerges {
		if id, ok := m.vocab.id(piece); ok {
			return append(dst, id)
		}
	}
	for len(piece) > 0 {
		n := m.bounds.first(piece)
		dst = m.appendWord(dst, piece[:n], m.vocab.hash(piece[:n]), sc)
		if !sc.spend(n, len(dst)) {
			break
		}
		piece = piece[n:]
	}
	return dst
}

// appendWord appends the merged tokens of word, whose hash is h.
func (m *bpe) appendWord(dst []int32, word string, h uint64, sc *scratch) []int32 {
	if len(word) <= cacheKeyMax {
		if e := m.cache.get(word, h); e != nil {
			return append(dst, e.ids[:e.idsLen]...)
		}
	}
	sc.ids = room(sc.ids, len(word))
	if m.byteLevel {
		sc.ids = m.byteSymbols(sc.ids[:0], word)
	} else {
		sc.ids = m.runeSymbols(sc.ids[:0], word)
	}
	ids := m.pairs.merge(sc)
	m.cache.put(word, h, ids)
	return append(dst, ids...)
}

// byteSymbols appends the token of each byte. A byte without one becomes the unknown token, or is
// left out if the model has none, as in the reference.
func (m *bpe) byteSymbols(dst []int32, word string) []int32 {
	pending := false // an unknown that the next may fuse with
	for i := range len(word) {
		id := m.bytes[word[i]]
		if id < 0 {
			id = m.unk
			if id < 0 || pending && m.fuseUnk {
				continue
			}
			pending = true
		} else {
			pending = false
		}
		dst = append(dst, id)
	}
	return dst
}

// runeSymbols appends the token of each character, its bytes' fallback tokens if it has none, or
// the unknown token.
func (m *bpe) runeSymbols(dst []int32, word string) []int32 {
	pending := false
	for i, n := 0, 0; i < len(word); i += n {
		var r rune
		r, n = runeAt(word, i)
		id := m.runes.get(r)
		switch {
		case id >= 0:
			pending = false
			dst = append(dst, id)
		case m.fallback != nil:
			for k := range n {
				dst = append(dst, m.fallback[word[i+k]])
			}
		case m.unk >= 0 && !(pending && m.fuseUnk):
			pending = true
			dst = append(dst, m.unk)
		}
	}
	return dst
}

// boundTable knows the pairs of characters that some merge joins: the last of its left token and
// the first of its right one. A piece can be cut between all other pairs: whatever is merged on
// either side, no merge crosses the cut, so the tokens are the same. Pairs share bits, so the table
// may forbid a cut that is possible, but never the reverse.
type boundTable struct {
	ascii [128][128]bool
	bits  [1 << 14]uint64 // of the hash of other pairs
}

func (t *boundTable) bit(left, right rune) (word, mask uint64) {
	h := (uint64(left)<<21 | uint64(right)) * 0x9E3779B97F4A7C15 >> 44
	return h >> 6, 1 << (h & 63)
}

// join says that a merge crosses between left and right.
func (t *boundTable) join(left, right rune) {
	if left < 128 && right < 128 {
		t.ascii[left][right] = true
		return
	}
	w, b := t.bit(left, right)
	t.bits[w] |= b
}

// first returns the length of piece up to the first place where it can be cut.
func (t *boundTable) first(piece string) int {
	left, i := runeAt(piece, 0)
	for i < len(piece) {
		right, n := runeAt(piece, i)
		if left < 128 && right < 128 {
			if !t.ascii[left][right] {
				return i
			}
		} else if w, b := t.bit(left, right); t.bits[w]&b == 0 {
			return i
		}
		left, i = right, i+n
	}
	return i
}
