//go:build amd64 && !purego

package cpu

func readVectors(p *byte, n int) { readAVX2(p, n) }

func readVectorsAhead(p *byte, n int) { readAheadAVX2(p, n) }

// fetchRows asks for the n bytes of each of some rows, at least one, which begin stride bytes apart. It never faults.
func fetchRows(p uintptr, n, stride, rows int) { fetchRowsAVX2(p, n, stride, rows) }
