package kvblocks

// FNV-1a with 64 bits.
const (
	digestStart uint64 = 14695981039346656037
	digestPrime uint64 = 1099511628211
)

// prefix stands for all tokens up to the end of a page.
type prefix struct {
	digest uint64
	root   uint64 // serial of the root that the tokens come after
}

// follow returns the prefix of a page with these tokens after those of parent.
func (p *Pool) follow(parent uint64, tokens []int32) prefix {
	if p.roots.bySerial[parent] != nil {
		return prefix{digest(digestStart, tokens), parent}
	}
	at, ok := p.named[parent]
	if !ok { // nothing finds what comes after a page that is gone
		return prefix{}
	}
	before := &p.pages[at].prefix
	return prefix{digest(before.digest, tokens), before.root}
}

// digest continues a digest with tokens: four bytes for each id, the lowest first. Tokens that are alike are the same.
func digest(d uint64, tokens []int32) uint64 {
	for _, id := range tokens {
		v := uint32(id ^ id>>31)
		for range 4 {
			d = (d ^ uint64(v&0xff)) * digestPrime
			v >>= 8
		}
	}
	return d
}

// Digests returns the digests of all prefixes of whole blocks that the pool has for a domain, in no order: FNV-1a, 64 bits, over
// the ids of all tokens from the first on, each as four bytes, the lowest first.
func (p *Pool) Digests(domain [32]byte) []uint64 {
	r := p.roots.byDomain[domain]
	if r == nil {
		return nil
	}
	list := make([]uint64, 0, len(p.named))
	for i := range p.pages {
		g := &p.pages[i]
		if g.serial != 0 && g.prefix.root == r.serial && len(g.tokens) == p.cfg.BlockTokens {
			list = append(list, g.prefix.digest)
		}
	}
	return list
}
