package api

import (
	"context"
	"time"

	"krater/actors/engine"
)

type backgroundKey struct{}

// Background marks what is done in a context as work that nobody waits for, and that is wanted
// until then.
func Background(ctx context.Context, until time.Time) context.Context {
	return context.WithValue(ctx, backgroundKey{}, until)
}

// InBackground reports whether the context is marked.
func InBackground(ctx context.Context) bool { return ctx.Value(backgroundKey{}) != nil }

// Yield lets a request of a marked context go behind all that somebody waits for. Its deadline
// becomes the context's: it may have to wait for longer than somebody would.
func Yield(ctx context.Context, req *engine.Request) {
	if until, marked := ctx.Value(backgroundKey{}).(time.Time); marked {
		req.Background, req.Deadline = true, until // its priority orders it among its like
	}
}
