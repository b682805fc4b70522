package expert

import (
	"krater/kernels/device"
	"krater/stages"
)

// Split groups the assignments of st's routed rows by expert, with experts and
// assignments rising (a stable counting sort). The result is in st's work
// space and is valid until the next Split of st. The stream of the router must be
// synchronised. Split panics on an expert id outside the bank, because then the
// router is broken.
func Split(st *stages.State) []device.ExpertRows {
	ids := st.HostRouterIDs()
	counts := st.Counts
	clear(counts)
	for _, e := range ids {
		counts[e]++
	}
	work := st.Work[:0]
	from := int32(0)
	for e, n := range counts {
		if n > 0 {
			work = append(work, device.ExpertRows{Expert: int32(e), Assign: st.Assign[from : from+n : from+n]})
		}
		counts[e] = from
		from += n
	}
	for a, e := range ids {
		st.Assign[counts[e]] = int32(a)
		counts[e]++
	}
	st.Work = work
	return work
}
