package kvblocks

// order is a list of ids in the order in which they were pushed, each at most once.
type order struct {
	prev, next []int32 // by id; the last index is the list itself; prev -1: not in it
	n          int
}

func newOrder(ids int) order {
	o := order{prev: make([]int32, ids+1), next: make([]int32, ids+1)}
	for i := range o.prev {
		o.prev[i] = -1
	}
	o.prev[ids], o.next[ids] = int32(ids), int32(ids)
	return o
}

func (o *order) list() int32       { return int32(len(o.prev) - 1) }
func (o *order) has(id int32) bool { return o.prev[id] >= 0 }

// front returns the id pushed longest ago; -1 for none.
func (o *order) front() int32 {
	if o.n == 0 {
		return -1
	}
	return o.next[o.list()]
}

// push puts an id at the end.
func (o *order) push(id int32) {
	list := o.list()
	last := o.prev[list]
	o.next[last], o.prev[id] = id, last
	o.next[id], o.prev[list] = list, id
	o.n++
}

// pushFront puts an id at the front.
func (o *order) pushFront(id int32) {
	list := o.list()
	first := o.next[list]
	o.prev[first], o.next[id] = id, first
	o.prev[id], o.next[list] = list, id
	o.n++
}

func (o *order) remove(id int32) {
	if !o.has(id) {
		panic("kvblocks: not in the list")
	}
	o.next[o.prev[id]], o.prev[o.next[id]] = o.next[id], o.prev[id]
	o.prev[id] = -1
	o.n--
}
