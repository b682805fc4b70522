package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"krater/actors/hop"
)

// Network connects members that know each other's names. The addresses that it takes are from hello
// messages; an empty one is the leader's.
type Network interface {
	// Expect waits for the connection of a hop.
	Expect(ctx context.Context, t Token, frameBytes int) (hop.Conn, error)
	// Dial connects to the member with that name, which expects the hop.
	Dial(ctx context.Context, address, name string, t Token, frameBytes int) (hop.Conn, error)
	// Ping sends heartbeats to the worker that calls Answer with the token, and returns when it has not
	// answered for timeout, or with ctx.
	Ping(ctx context.Context, t Token, timeout time.Duration, heard func(rtt, offset time.Duration)) error
	// Answer answers heartbeats of the leader, and returns when none has come for timeout.
	Answer(ctx context.Context, t Token, timeout time.Duration) error
}

// redialEvery is how often a member that does not expect a hop yet is asked again.
const redialEvery = 20 * time.Millisecond

// dial connects until ctx ends: the other end may learn of the hop a moment later.
func dial(ctx context.Context, n Network, address, name string, t Token, frameBytes int) (hop.Conn, error) {
	for {
		c, err := n.Dial(ctx, address, name, t, frameBytes)
		if err == nil || ctx.Err() != nil {
			return c, err
		}
		select {
		case <-time.After(redialEvery):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

// together makes connections at the same time. If one cannot be made, it closes the others.
func together(ctx context.Context, makes []func(context.Context) (hop.Conn, error)) ([]hop.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	list, errs := make([]hop.Conn, len(makes)), make([]error, len(makes))
	var wg sync.WaitGroup
	for i, f := range makes {
		wg.Go(func() {
			if list[i], errs[i] = f(ctx); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	err := errors.Join(errs...)
	if err != nil {
		for _, c := range list {
			if c != nil {
				c.Close()
			}
		}
		return nil, err
	}
	return list, nil
}
