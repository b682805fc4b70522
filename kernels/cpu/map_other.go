//go:build !unix

package cpu

func mapMemory(n int) ([]byte, error) { return alignedBytes(n), nil }

func unmapMemory([]byte) {}
