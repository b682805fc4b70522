//go:build !amd64 || purego

package cpu

// The vector loops are never chosen: this build has the portable level only.
func readVectors(p *byte, n int) { readWords(p, n) }

func readVectorsAhead(p *byte, n int) { readWords(p, n) }

func fetchRows(p uintptr, n, stride, rows int) {}
