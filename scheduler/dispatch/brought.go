package dispatch

import (
	"cmp"
	"slices"
)

// ShareUnit is all of a layer's missing experts, where a share of them is given.
const ShareUnit = 256

// Brought moves some indices of work from host to list: those of experts that are copied to the device
// while the host computes the others. It moves share/ShareUnit of them, at most most. The number is
// rounded down, because copying an expert takes longer than computing it on the host. Experts with the
// most rows come first, because a copy takes the same time for any number of rows; among equal ones
// lower ids come first (device.OpPickExperts uses the same order).
func Brought(list, host []int32, work []Rows, share, most int) (brought, left []int32) {
	n := min(most, len(host)*share/ShareUnit)
	if n < 1 {
		return list, host
	}
	order := slices.Clone(host)
	slices.SortStableFunc(order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(work[b].Rows, work[a].Rows), cmp.Compare(work[a].Expert, work[b].Expert))
	})
	list = append(list, order[:n]...)
	return list, slices.DeleteFunc(host, func(i int32) bool { return slices.Contains(order[:n], i) })
}
