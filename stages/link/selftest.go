package link

import (
	"encoding/binary"
	"errors"
	"fmt"

	"krater/kernels/device"
)

// test carries patterns over the link in use and compares every word that arrives. There are two
// rounds for one row and two for all of them: a link that leaves zeros, gives what it carried before,
// stops short or puts rows in other places fails, by name.
func (h *Hop) test(from, to device.Stream, src, dst device.Mat) error {
	for round, rows := range [...]int{1, 1, src.Rows, src.Rows} {
		if err := h.probe(from, to, src.RowRange(0, rows), dst.RowRange(0, rows), uint64(round)); err != nil {
			return fmt.Errorf("test with %d rows: %w", rows, err)
		}
	}
	return nil
}

func (h *Hop) probe(from, to device.Stream, src, dst device.Mat, round uint64) error {
	n := src.Bytes()
	sent, got, before := make([]byte, n), make([]byte, n), make([]byte, n)
	for i := 0; i+4 <= n; i += 4 {
		binary.LittleEndian.PutUint32(sent[i:], word(round, i))
		binary.LittleEndian.PutUint32(before[i:], ^word(round, i))
	}
	from.CopyIn(src, sent)
	to.CopyIn(dst, before)
	if err := to.Synchronize(); err != nil {
		return err
	}
	if err := h.Carry(from, to, []device.Mat{src}, []device.Mat{dst}); err != nil {
		return err
	}
	to.CopyOut(got, dst)
	if err := errors.Join(to.Synchronize(), from.Synchronize()); err != nil {
		return err
	}
	fault := h.Arrived()
	if errors.Is(fault, ErrLate) {
		return fault
	}
	for i := 0; i+4 <= n; i += 4 {
		x, want := binary.LittleEndian.Uint32(got[i:]), word(round, i)
		if x == want {
			continue
		}
		what := fmt.Sprintf("%08x", x)
		switch {
		case x == 0:
			what = "zeros"
		case x == ^want:
			what = "nothing"
		case round > 0 && x == word(round-1, i):
			what = "what was carried before"
		}
		return fmt.Errorf("row %d: %s arrived instead of %08x", i/(src.Cols*src.DType.Size()), what, want)
	}
	return fault
}

// word returns the pattern of a round at an offset in bytes; it is never 0.
func word(round uint64, at int) uint32 {
	x := (uint64(at) + round<<40) * 0x9e3779b97f4a7c15
	return uint32(x>>32) | 1
}
