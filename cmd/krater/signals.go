package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
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

// lossyWriter writes the lines of a log. It drops and counts lines that cannot be written: a server
// does not end because its log has no reader any more.
type lossyWriter struct {
	w    io.Writer
	lost atomic.Uint64
}

// Write implements io.Writer. It returns no error.
func (l *lossyWriter) Write(line []byte) (int, error) {
	if _, err := l.w.Write(line); err != nil {
		l.lost.Add(1)
	}
	return len(line), nil
}

// metric counts lost lines.
func (l *lossyWriter) metric() prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "krater:log_lines_dropped", Help: "Lines of the log that could not be written.",
	}, func() float64 { return float64(l.lost.Load()) })
}
