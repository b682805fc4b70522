package actors

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/rs/zerolog"
)

// logBridge is the slog handler that the actor library writes to; its lines
// come out through our logger. The library reports a failed actor at level
// info; the shell has logged that in full by then.
type logBridge struct {
	log   zerolog.Logger
	attrs []slog.Attr
}

// Enabled implements slog.Handler.
func (h *logBridge) Enabled(_ context.Context, l slog.Level) bool {
	return zerologLevel(l) >= h.log.GetLevel()
}

// Handle implements slog.Handler.
func (h *logBridge) Handle(_ context.Context, r slog.Record) error {
	e := h.log.WithLevel(zerologLevel(r.Level)).Str("from", "protoactor")
	for _, a := range h.attrs {
		e = e.Str(field(a))
	}
	r.Attrs(func(a slog.Attr) bool {
		e = e.Str(field(a))
		return true
	})
	e.Msg(r.Message)
	return nil
}

// field returns an attribute as our logger takes it. Of a message only the type is
// logged: its content belongs to its receiver.
func field(a slog.Attr) (key, value string) {
	if a.Key == "message" {
		return "type", fmt.Sprintf("%T", a.Value.Any())
	}
	return a.Key, a.Value.String()
}

// WithAttrs implements slog.Handler.
func (h *logBridge) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logBridge{log: h.log, attrs: append(append([]slog.Attr{}, h.attrs...), attrs...)}
}

// WithGroup implements slog.Handler; the library uses no groups.
func (h *logBridge) WithGroup(string) slog.Handler { return h }

// zerologLevel maps the library's levels one step down: its "info" is our debug.
func zerologLevel(l slog.Level) zerolog.Level {
	switch {
	case l >= slog.LevelError:
		return zerolog.ErrorLevel
	case l >= slog.LevelWarn:
		return zerolog.WarnLevel
	default:
		return zerolog.DebugLevel
	}
}
