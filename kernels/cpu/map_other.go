//go:build !unix

package cpu

import "unsafe"

func mapMemory(n int) ([]byte, error) { return alignedBytes(n), nil }

func unmapMemory([]byte) {}

func adviseRead(unsafe.Pointer, int) {}
