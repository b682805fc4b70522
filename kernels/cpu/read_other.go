//go:build !amd64 || purego

package cpu

func read(b []byte) { readPure(b) }
