package stages

import "krater/kernels/device"

// Routing sets RouterIDs to the matrix into which the router of a layer of the model writes its choice.
// On an accelerator every layer has a matrix of its own until the state's next step, so that the host
// can fetch the choices of all layers when the step has ended (FetchRoutes). On other devices layers
// share one.
func (st *State) Routing(layer int) {
	if st.moe == nil {
		return
	}
	from := st.moe[layer]*st.Total() + st.first
	st.RouterIDs = st.full.routerIDs.RowRange(from, from+st.T)
}

// FetchRoutes enqueues the copy of all routers' choices in the step to the host, in one piece for any
// number of layers and rows. It does nothing if Routes returns nil. It may follow a step that is
// Repeated.
func (st *State) FetchRoutes(s device.Stream) {
	if n := len(st.routes) / max(1, st.lim.Tokens) * st.Total(); n > 0 {
		m := st.full.routerIDs
		s.CopyOut(int32Bytes(st.routes[:n]), m.RowRange(0, n/m.Cols))
	}
}

// Routes returns the experts chosen in a layer of the model for all rows of the batch [T*K], row by row.
// It returns nil for a layer without experts and on a device that is not an accelerator. The stream
// given to FetchRoutes must be synchronised.
func (st *State) Routes(layer int) []int32 {
	if st.moe == nil || !st.cfg.MoELayer(layer) {
		return nil
	}
	n := st.Total() * st.full.routerIDs.Cols
	return st.routes[st.moe[layer]*n:][:n]
}

// moeLayers is how many layers have experts, indexOf the place of each among them.
func moeLayers(layers int, moe func(int) bool) (n int, indexOf []int) {
	indexOf = make([]int, layers)
	for l := range indexOf {
		indexOf[l] = n
		if moe(l) {
			n++
		}
	}
	return n, indexOf
}
