package kvblocks

// roots are the starting points of prefixes. A root exists while it is open or a first block refers
// to it.
type roots struct {
	byDomain map[[32]byte]*root
	bySerial map[uint64]*root
}

type root struct {
	domain [32]byte
	serial uint64
	uses   int
}

func (r *roots) init() {
	r.byDomain, r.bySerial = map[[32]byte]*root{}, map[uint64]*root{}
}

// Open returns the root of a domain. Each needs one Close.
func (p *Pool) Open(domain [32]byte) uint64 {
	r := p.roots.byDomain[domain]
	if r == nil {
		p.table.serial++
		r = &root{domain: domain, serial: p.table.serial}
		p.roots.byDomain[domain], p.roots.bySerial[r.serial] = r, r
	}
	r.uses++
	return r.serial
}

// Close releases a root.
func (p *Pool) Close(serial uint64) { p.roots.count(serial, -1) }

// count changes the uses of a root; of what is none it does nothing.
func (r *roots) count(serial uint64, by int) {
	t := r.bySerial[serial]
	if t == nil {
		return
	}
	if t.uses += by; t.uses == 0 {
		delete(r.byDomain, t.domain)
		delete(r.bySerial, serial)
	}
}
