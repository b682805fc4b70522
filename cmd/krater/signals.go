package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// untilStopped returns a context that ends when the process is told to stop: by SIGINT or SIGTERM,
// or by SIGHUP when its terminal closes, unless it runs under nohup. A second SIGINT or SIGTERM
// ends the process at once. A second SIGHUP does not, because the terminal and its shell both send
// one.
func untilStopped() (ctx context.Context, release func()) {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	keep := context.AfterFunc(ctx, func() {
		signal.Ignore(syscall.SIGHUP)
		stop()
	})
	return ctx, func() {
		keep()
		stop()
	}
}
