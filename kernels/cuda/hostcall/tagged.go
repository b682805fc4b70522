package hostcall

import (
	"math"
	"sync/atomic"
)

// tagged reads calls of tagged words for all servers. The first that comes goes on where the last
// one found a word missing. None waits for another.
type tagged struct {
	words   []uint64 // written by the GPU: data below the call's number
	data    []uint32 // of the current call
	reading atomic.Bool
	whole   atomic.Uint64 // 1<<32 | the number of the call that has been read
	number  uint32        // the call being read; the server that is reading owns this,
	have    int           // and the number of words that have come
}

// read reports whether data has all n words of a call. If not, the caller tries again.
func (t *tagged) read(number uint32, n int) bool {
	done := 1<<32 | uint64(number)
	if t.whole.Load() == done {
		return true
	}
	if !t.reading.CompareAndSwap(false, true) {
		return false
	}
	defer t.reading.Store(false)
	if t.whole.Load() == done { // another server has just done it
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

// forget lets data be written again: no server needs the call any more.
func (t *tagged) forget() { t.whole.Store(0) }

// untag writes the data of words to data, up to the first word that has not come, and returns
// how many there are.
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

// tag writes numbers as tagged words. The GPU sees them in any order, but each as a whole, because
// an aligned store of 8 bytes is atomic.
func tag(words []uint64, numbers []float32, number uint32) {
	t := uint64(number) << 32
	words = words[:len(numbers)]
	for i, v := range numbers {
		words[i] = t | uint64(math.Float32bits(v))
	}
}
