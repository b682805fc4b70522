//go:build !amd64 || purego

package cpu

// readVectors is never chosen: this build has the portable level only.
func readVectors(p *byte, n int) { readWords(p, n) }
