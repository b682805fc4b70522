package cards

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"krater/kernels/cuda/bin"
)

// Sources has the sources of every kernel.
type Sources struct {
	manifest *bin.Manifest
	file     map[string]string // by kernel
}

// NewSources joins the two tables of package bin.
func NewSources(m *bin.Manifest, rows []bin.Resources) *Sources {
	s := &Sources{m, map[string]string{}}
	for _, r := range rows {
		s.file[r.Kernel] = r.Source
	}
	return s
}

// Hash returns a hash of all sources of some kernels.
func (s *Sources) Hash(kernels []string) (string, error) {
	var files []string
	for _, k := range kernels {
		f, ok := s.file[k]
		if !ok {
			return "", fmt.Errorf("no source is known for kernel %s", k)
		}
		files = append(files, f)
	}
	slices.Sort(files)
	h := sha256.New()
	for _, f := range slices.Compact(files) {
		fmt.Fprintln(h, f, s.manifest.SourceHash(f))
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}
