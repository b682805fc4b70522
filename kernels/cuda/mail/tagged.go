package mail

import (
	"math"
	"sync/atomic"
)

// tagged reads letters of tagged words for all who await them: whoever comes first goes on
// where the last one found a word missing, and nobody waits for another.
type tagged struct {
	words   []uint64 // written by the card: data below the letter's number
	data    []uint32 // of the letter in hand
	reading atomic.Bool
	whole   atomic.Uint64 // 1<<32 | the number of the letter that has been read
	number  uint32        // the rest belongs to who is reading: the letter,
	have    int           // and how many of its words are there
}

// read reports whether data has all n words of a letter. false: come again.
func (t *tagged) read(number uint32, n int) bool {
	done := 1<<32 | uint64(number)
	if t.whole.Load() == done {
		return true
	}
	if !t.reading.CompareAndSwap(false, true) {
		return false
	}
	defer t.reading.Store(false)
	if t.whole.Load() == done { // by another, just now
		return true
	}
	if t.number != number {
		t.number, t.have = number, 0
	}
	t.have += untag(t.data[t.have:n], t.words[t.have:n], number)
	if t.have < n {
		return false
	}
	t.whole.Store(done)
	return true
}

// forget lets data be written again: all who had the letter are done with it.
func (t *tagged) forget() { t.whole.Store(0) }

// untag takes apart the words that have come, and says how many there are up to the first
// that has not.
func untag(data []uint32, words []uint64, number uint32) int {
	words = words[:len(data)]
	for i := range data {
		w := atomic.LoadUint64(&words[i])
		if uint32(w>>32) != number {
			return i
		}
		data[i] = uint32(w)
	}
	return len(data)
}

// tag writes numbers as words. The card sees them in any order, but each as a whole: an
// aligned store of 8 bytes is one.
func tag(words []uint64, numbers []float32, number uint32) {
	t := uint64(number) << 32
	words = words[:len(numbers)]
	for i, v := range numbers {
		words[i] = t | uint64(math.Float32bits(v))
	}
}
