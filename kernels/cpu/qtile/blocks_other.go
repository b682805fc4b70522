//go:build !linux || !amd64 || purego

package qtile

func int3Blocks(*Tile) { panic("qtile: not available") }
func int4Blocks(*Tile) { panic("qtile: not available") }
func int8Blocks(*Tile) { panic("qtile: not available") }
