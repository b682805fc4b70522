//go:build linux && amd64 && !purego

package btile

func singleToken(t *Tile) { singleAMX(t) }
func oneTile(t *Tile)     { oneAMX(t) }
func twoTiles(t *Tile)    { twoAMX(t) }

func packTokens(b *Block)                    { packTokensAMX(b) }
func packToken(row, out *float32, steps int) { packTokenAMX(row, out, steps) }
