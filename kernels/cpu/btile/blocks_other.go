//go:build !linux || !amd64 || purego

package btile

const absent = "btile: not available"

func singleToken(*Tile) { panic(absent) }
func oneTile(*Tile)     { panic(absent) }
func twoTiles(*Tile)    { panic(absent) }

func packTokens(*Block)              { panic(absent) }
func packToken(_, _ *float32, _ int) { panic(absent) }
