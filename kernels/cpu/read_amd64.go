//go:build amd64 && !purego

package cpu

func readVectors(p *byte, n int) { readAVX2(p, n) }

func readVectorsAhead(p *byte, n int) { readAheadAVX2(p, n) }
