//go:build !linux || !amd64 || purego

package btile

// unit is never used: Available says that there is none.
var unit = pure
