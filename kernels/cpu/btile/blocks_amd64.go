//go:build linux && amd64 && !purego

package btile

var unit = Funcs{single: singleAMX, one: oneAMX, two: twoAMX, tokens: packTokensAMX, token: packTokenAMX, weigh: weighAMX}
