package ops

import "krater/kernels/cuda/launch"

// arena cuts scratch memory: once to add up, once to hand out.
type arena struct {
	at   launch.Ptr
	size int
}

// cut gives n bytes, aligned to 256.
func (a *arena) cut(n int) launch.Ptr {
	p := a.at + launch.Ptr(a.size)
	a.size += (n + 255) &^ 255
	return p
}

// lay has parts cut what they need, in memory of the builder.
func (b *Builder) lay(parts func(a *arena)) {
	var a arena
	parts(&a)
	a = arena{at: b.Scratch(a.size)}
	parts(&a)
}
