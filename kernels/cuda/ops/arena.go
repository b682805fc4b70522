package ops

import "krater/kernels/cuda/launch"

// arena divides scratch memory: one pass adds up the sizes, a second returns the parts.
type arena struct {
	at   launch.Ptr
	size int
}

// cut returns n bytes, aligned to 256.
func (a *arena) cut(n int) launch.Ptr {
	p := a.at + launch.Ptr(a.size)
	a.size += (n + 255) &^ 255
	return p
}

// lay lets parts cut what they need from the builder's memory.
func (b *Builder) lay(parts func(a *arena)) {
	var a arena
	parts(&a)
	a = arena{at: b.Scratch(a.size)}
	parts(&a)
}
