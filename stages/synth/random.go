package synth

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"krater/kernels/tensor"
)

// key names a stream of random words.
func (m *Model) key(name string) uint64 {
	sum := sha256.Sum256(append(binary.LittleEndian.AppendUint64(nil, m.seed), name...))
	return binary.LittleEndian.Uint64(sum[:])
}

// random is word i of a stream: the output function of SplitMix64 (Steele, Lea and
// Flood, "Fast splittable pseudorandom number generators", 2014) on a counter.
// There is no state, so that any part of a stream can be made anywhere.
func random(key, i uint64) uint64 {
	z := key + i*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// quantiles are the middles of 4,096 equally likely pieces of the normal
// distribution: within 3.7 of 0.
var quantiles = sync.OnceValue(func() *[4096]float64 {
	var q [4096]float64
	for i := range q {
		q[i] = math.Sqrt2 * math.Erfinv(2*(float64(i)+0.5)/float64(len(q))-1)
	}
	return &q
})

// normals are the quantiles of a normal distribution as bfloat16: a table of 8 KiB
// stays in the first-level cache.
func normals(mean, std float64) *[4096]uint16 {
	var t [4096]uint16
	for i, q := range quantiles() {
		t[i] = tensor.F32ToBF16(float32(mean + std*q))
	}
	return &t
}

// fillFloats writes bfloat16 numbers of a stream, four a word, from word first on.
func fillFloats(dst []byte, key, first uint64, table *[4096]uint16) {
	i := first
	for ; len(dst) >= 8; dst = dst[8:] {
		w := random(key, i)
		binary.LittleEndian.PutUint64(dst, uint64(table[w&4095])|uint64(table[w>>16&4095])<<16|uint64(table[w>>32&4095])<<32|uint64(table[w>>48&4095])<<48)
		i++
	}
	for w := random(key, i); len(dst) >= 2; dst = dst[2:] {
		binary.LittleEndian.PutUint16(dst, table[w&4095])
		w >>= 16
	}
}

// fillBytes writes raw words of a stream, from word first on; dst is a multiple
// of 8 long.
func fillBytes(dst []byte, key, first uint64) {
	i := first
	for ; len(dst) >= 8; dst = dst[8:] {
		binary.LittleEndian.PutUint64(dst, random(key, i))
		i++
	}
}

// spread calls work for 0..n-1 on several threads; 0: all cores.
func spread(n, threads int, work func(i int)) {
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	var next atomic.Int64
	var wait sync.WaitGroup
	run := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			work(i)
		}
	}
	for range min(threads, n) - 1 {
		wait.Go(run)
	}
	run()
	wait.Wait()
}
