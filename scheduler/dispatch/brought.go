package dispatch

import (
	"cmp"
	"slices"
)

// ShareUnit is all of a layer's missing experts, where a share of them is given.
const ShareUnit = 256

// Brought moves some of host, indices of work, to list: the experts that are copied to the device while the host
// computes the others. They are share of ShareUnit of them, rounded down since a
// copy of one expert takes longer than the host takes for one, and at most most. Those with the most rows come first, since a
// copy takes as long whatever their number; of equal ones those with lower ids (device.OpPickExperts does the same).
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
