package weights

// Named is a tensor and its name.
type Named struct {
	Name string
	Tensor
}

// Of is a set of tensors that were made otherwise than read; free (nil: nothing)
// is called by Close. Data may be nil where only name, type and shape are used.
func Of(list []Named, free func() error) *Set {
	s := &Set{tensors: make(map[string]Tensor, len(list))}
	for _, t := range list {
		s.tensors[t.Name] = t.Tensor
		s.names = append(s.names, t.Name)
		s.bytes += int64(len(t.Data))
	}
	if free != nil {
		s.unmap = append(s.unmap, free)
	}
	return s
}
