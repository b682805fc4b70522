//go:build linux && amd64 && !purego

package qtile

func int3Blocks(t *Tile) { int3BlocksAMX(t) }
func int4Blocks(t *Tile) { int4BlocksAMX(t) }
func int8Blocks(t *Tile) { int8BlocksAMX(t) }
