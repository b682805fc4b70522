package device

import "encoding/binary"

// Bridge joins an accelerator and another device for a link between them. It has memory of the host
// that both use in place, and a gate. It belongs to one batch.
type Bridge interface {
	// Host returns the memory, pinned for both devices. Its first SumBytes are for Sum.
	Host() []byte
	// Peer reports whether CopyPeer can copy from the other device without the host.
	Peer() bool
	// CopyPeer enqueues copies of src, dense matrices of the other device, to dst. s is a stream of the
	// device that made the bridge.
	CopyPeer(s Stream, dst, src []Mat)
	// Sum enqueues the SumOf of up to three dense matrices on s, a stream of either device. When s has
	// passed, Host has SumParts numbers of 64 bits from byte at on, whose sum is the SumOf. Earlier work
	// is sent first, so that a step before it can be replayed.
	Sum(s Stream, at int, rows []Mat)
	// Open enqueues the opening of the gate on s, a stream of the device that made the bridge. It returns
	// the error of s if s has failed. Pass makes another stream wait for the latest Open. Unlike the wait
	// for an event, the host can end this wait.
	Open(s Stream) error
	Pass(s Stream)
	// Passed reports whether the gate is open for the latest Pass. Force opens it.
	Passed() bool
	Force()
	// Close frees the memory. No work that uses the bridge may be running.
	Close()
}

// Sums of Bridge.Sum: SumParts numbers of each of two streams. A matrix has less than SumWords words.
const (
	SumParts = 128
	SumBytes = 2 * 8 * SumParts
	SumWords = 1 << 29
)

// SumOf returns the sum modulo 2^64 of all words of 32 bits of b, the part-th matrix. What a word adds is a
// bijection of it that differs with the place. So one wrong word always changes the sum, and other
// faults leave it as it is once in 2^64 times.
func SumOf(part int, b []byte) (sum uint64) {
	key := uint64(part) << 61
	for ; len(b) >= 4; b = b[4:] {
		z := key | uint64(binary.LittleEndian.Uint32(b))
		z *= 0x9e3779b97f4a7c15
		z ^= z >> 32
		z *= 0xd6e8feb86659fd93
		sum += z ^ z>>32
		key += 1 << 32
	}
	return sum
}
