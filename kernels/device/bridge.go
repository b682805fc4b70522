package device

import "encoding/binary"

// Bridge joins an accelerator and another device for a link between them. It has memory of the host
// that both use in place, and a gate. It belongs to one batch.
type Bridge interface {
	// Host is the memory, pinned for both devices. Its first SumBytes are for Sum.
	Host() []byte
	// Peer reports whether CopyPeer can copy from the other device without the host.
	Peer() bool
	// CopyPeer enqueues on s, a stream of the device that made the bridge, copies of src, dense
	// matrices of the other device, to dst.
	CopyPeer(s Stream, dst, src []Mat)
	// Sum enqueues on s, a stream of either device, the SumOf of up to three dense matrices. It is
	// in Host from byte at on, as SumParts numbers of 64 bits of which it is the sum, once s has
	// passed. What was enqueued before is sent first, so that a step in front of it can be replayed.
	Sum(s Stream, at int, rows []Mat)
	// Open enqueues on s, a stream of the device that made the bridge, that the gate opens. It returns
	// why s has failed, if it has. Pass makes another stream wait for the latest Open. An event
	// would do this as well, but the host cannot end the wait for one.
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

// SumOf is the sum modulo 2^64 of all words of 32 bits of b, the part-th matrix. What a word adds is a
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
