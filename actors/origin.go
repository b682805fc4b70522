package actors

import "krater/actors/engine"

// originsKept is how many origins of ended requests are remembered, because readers of the trace
// look them up half a second later.
const originsKept = 1024

// origins has the origins of the requests that ended last.
type origins struct {
	of    map[uint64]engine.Origin
	order []uint64 // ids in a circle
	next  int      // the oldest, once the circle is closed
}

// keep remembers one in the place of the oldest.
func (k *origins) keep(id uint64, o engine.Origin) {
	if k.of == nil {
		k.of = map[uint64]engine.Origin{}
	}
	k.of[id] = o
	if len(k.order) < originsKept {
		k.order = append(k.order, id)
		return
	}
	delete(k.of, k.order[k.next])
	k.order[k.next] = id
	k.next = (k.next + 1) % originsKept
}

// Origin returns the origin of an open request or of one that ended recently. It returns the zero
// value for any other request.
func (g *Gateway) Origin(id uint64) engine.Origin {
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	if o := g.r.outputs[id]; o != nil {
		return o.origin()
	}
	return g.r.origins.of[id]
}

func (o *output) origin() engine.Origin { return engine.Origin{Name: o.name, Caller: o.caller} }
