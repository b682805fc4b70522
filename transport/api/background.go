package api

import (
	"context"

	"krater/actors/engine"
)

type backgroundKey struct{}

// Background marks what is done in a context as work that nobody waits for.
func Background(ctx context.Context) context.Context {
	return context.WithValue(ctx, backgroundKey{}, true)
}

// InBackground tells if the context is marked.
func InBackground(ctx context.Context) bool { return ctx.Value(backgroundKey{}) != nil }

// Yield lets a request of a marked context go behind all that somebody waits for.
func Yield(ctx context.Context, req *engine.Request) {
	if InBackground(ctx) {
		req.Background = true // its priority orders it among its like
	}
}
