package api

import (
	"context"
	"time"

	"krater/actors/engine"
)

type backgroundKey struct{}

// Background marks a context: its work is wanted, but no client waits for it.
func Background(ctx context.Context, until time.Time) context.Context {
	return context.WithValue(ctx, backgroundKey{}, until)
}

// InBackground reports whether the context is marked.
func InBackground(ctx context.Context) bool { return ctx.Value(backgroundKey{}) != nil }

// Yield gives a request of a marked context a lower rank than all requests that clients wait for.
// Its deadline is the context's, because it may wait longer than a client would.
func Yield(ctx context.Context, req *engine.Request) {
	if until, marked := ctx.Value(backgroundKey{}).(time.Time); marked {
		req.Background, req.Deadline = true, until // priorities order it among other background requests
	}
}
