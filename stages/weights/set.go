// Package weights opens a model's weights: one safetensors file, or shards with
// an index. Tensors are views of the mapped or embedded files; none is copied. Their values are
// plain numbers, or a code that is decoded where they are used (Coded).
//
// The index is an allow-list: a shard that is missing or not named, a tensor
// that is missing, stray or present twice is an error before anything is used.
// Started with less, a model would answer with garbage.
package weights

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"krater/scheduler/files"
	"krater/stages/weights/safetensors"
)

// Set holds the tensors of a model. It is safe for concurrent use until Close.
type Set struct {
	tensors map[string]Tensor
	names   []string // by file name, then by position in the file
	bytes   int64
	unmap   []func() error
	release func(b []byte) // nil: not mapped
}

// Of returns a set of tensors that were made otherwise than read. free (nil: nothing) is called by
// Close. release (nil: nothing) is called by Release, for each piece of Stored. Data may be nil
// where only name, type and shape are used.
func Of(list []Named, free func() error, release func(b []byte)) *Set {
	s := &Set{tensors: make(map[string]Tensor, len(list)), release: release}
	for _, t := range list {
		s.tensors[t.Name] = t.Tensor
		s.names = append(s.names, t.Name)
		s.bytes += t.Bytes()
	}
	if free != nil {
		s.unmap = append(s.unmap, free)
	}
	return s
}

// View returns a set of tensors made of those of s: a part of one, or values with their scales. It
// takes over the memory of s, which is empty from then on.
func (s *Set) View(list []Named) *Set {
	v := Of(list, nil, s.release)
	v.unmap = s.unmap
	*s = Set{}
	return v
}

// Tensor returns a tensor by name.
func (s *Set) Tensor(name string) (Tensor, bool) {
	t, ok := s.tensors[name]
	return t, ok
}

// Names lists all tensors in the order of the files' bytes: reading them in this
// order reads each file from front to back. Not to be changed.
func (s *Set) Names() []string { return s.names }

// Bytes returns the size of all tensors together.
func (s *Set) Bytes() int64 { return s.bytes }

// Release tells that a tensor is not needed for now: where it is mapped, its pages
// no longer count as the process's memory and are read again when used. It may be
// called while others read the tensor.
func (s *Set) Release(name string) {
	if t, ok := s.tensors[name]; ok && s.release != nil {
		for _, piece := range t.Stored() {
			s.release(piece)
		}
	}
}

// Close gives the memory back. No tensor of the set may be read afterwards.
// Calling it twice is allowed.
func (s *Set) Close() error {
	unmap := s.unmap
	*s = Set{}
	var errs []error
	for _, f := range unmap {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// folder is where weight files come from.
type folder interface {
	// names lists the files.
	names() ([]string, error)
	// has reports whether the file is there, a link's target if it is a link.
	has(name string) bool
	// open returns a file's content and what frees it (nil: nothing to free).
	open(name string) ([]byte, func() error, error)
}

// open reads the set of a folder.
func open(dir folder) (*Set, error) {
	plan, err := planOf(dir)
	if err != nil {
		return nil, err
	}
	s := &Set{tensors: make(map[string]Tensor, len(plan.shardOf))}
	if err := s.addAll(dir, plan); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// addAll reads every shard, then holds the tensors found against the index: in
// this order, a tensor in two shards is always reported as that.
func (s *Set) addAll(dir folder, plan *plan) error {
	ends := make([]int, len(plan.shards)) // of each shard's names in s.names
	for i, shard := range plan.shards {
		data, unmap, err := dir.open(shard)
		if err != nil {
			return fmt.Errorf("%s: %w", shard, err)
		}
		if unmap != nil {
			s.unmap = append(s.unmap, unmap)
		}
		list, err := parse(shard, data)
		if err != nil {
			return fmt.Errorf("%s: %w", shard, err)
		}
		for _, t := range list {
			if _, dup := s.tensors[t.Name]; dup {
				return fmt.Errorf("%s: tensor %.100q: %w", shard, t.Name, ErrDuplicate)
			}
			s.tensors[t.Name] = Tensor{DType: t.DType, Shape: t.Shape, Data: t.Data}
			s.names = append(s.names, t.Name)
			s.bytes += int64(len(t.Data))
		}
		ends[i] = len(s.names)
	}
	if plan.shardOf == nil {
		return nil
	}
	from := 0
	for i, shard := range plan.shards {
		for _, name := range s.names[from:ends[i]] {
			if want := plan.shardOf[name]; want == "" {
				return fmt.Errorf("%s: tensor %.100q: %w", shard, name, ErrTensorStray)
			} else if want != shard {
				return fmt.Errorf("%s: tensor %.100q: %w, which has it in %s", shard, name, ErrTensorStray, want)
			}
		}
		from = ends[i]
	}
	if len(s.names) < len(plan.shardOf) {
		return s.missing(plan)
	}
	return nil
}

// parse reads the header of a shard.
func parse(name string, data []byte) ([]safetensors.Tensor, error) {
	if err := files.CheckPointer(name, data); err != nil {
		return nil, err
	}
	list, err := safetensors.Parse(data)
	if errors.Is(err, safetensors.ErrTooShort) || errors.Is(err, safetensors.ErrTruncated) {
		err = fmt.Errorf("%w; its download may not have ended", err)
	}
	return list, err
}

// missing names the first few tensors that no shard had.
func (s *Set) missing(plan *plan) error {
	var absent []string
	for name := range plan.shardOf {
		if _, ok := s.tensors[name]; !ok {
			absent = append(absent, name)
		}
	}
	slices.Sort(absent)
	const limit = 5
	rest := ""
	if n := len(absent) - limit; n > 0 {
		absent, rest = absent[:limit], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("%s: %w: %q%s", plan.shardOf[absent[0]], ErrTensorMissing, absent, rest)
}

// All goes over all tensors in the order of Names.
func (s *Set) All() iter.Seq2[string, Tensor] {
	return func(yield func(string, Tensor) bool) {
		for _, name := range s.names {
			if !yield(name, s.tensors[name]) {
				return
			}
		}
	}
}

// TypeBytes is the number of bytes of a set's tensors with one type.
type TypeBytes struct {
	Type  string // in capitals: "Q4_K", "BF16"
	Bytes int64
}

// Types lists the types of the tensors as they are stored, the one with the most bytes first.
func (s *Set) Types() (list []TypeBytes) {
	bytes := map[string]int64{}
	for _, t := range s.All() {
		name := t.DType.String()
		if t.Coded != nil {
			name = t.Coded.Encoding()
		}
		for _, piece := range t.Stored() {
			bytes[strings.ToUpper(name)] += int64(len(piece))
		}
	}
	for name, n := range bytes {
		list = append(list, TypeBytes{name, n})
	}
	slices.SortFunc(list, func(a, b TypeBytes) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), strings.Compare(a.Type, b.Type))
	})
	return list
}
