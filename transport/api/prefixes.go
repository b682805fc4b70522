package api

import (
	"fmt"
	"hash/fnv"
	"slices"

	"krater/actors/engine"
)

// PrefixDigest is the answer of GET /v1/prefixes.
type PrefixDigest struct {
	Object      string   `json:"object"` // prefix_digest
	Model       string   `json:"model"`
	BlockTokens int      `json:"block_tokens"`
	Hash        string   `json:"hash"`     // fnv1a-64
	Prefixes    []string `json:"prefixes"` // 16 hexadecimal digits each, in ascending order
}

// NewPrefixDigest returns the answer, and a tag that is another when the prefixes are others.
func NewPrefixDigest(info engine.Info, p engine.Prefixes) (d PrefixDigest, tag string) {
	slices.Sort(p.Digests)
	d = PrefixDigest{Object: "prefix_digest", Model: info.ID, BlockTokens: p.BlockTokens, Hash: "fnv1a-64", Prefixes: make([]string, len(p.Digests))}
	sum := fnv.New64a()
	for i, v := range p.Digests {
		d.Prefixes[i] = fmt.Sprintf("%016x", v)
		sum.Write([]byte(d.Prefixes[i]))
	}
	return d, fmt.Sprintf("%016x", sum.Sum64())
}
