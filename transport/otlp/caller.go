package otlp

import (
	"context"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	oteltrace "go.opentelemetry.io/otel/trace"

	"krater/actors/engine"
)

// Limits of what a client may send. Version 00 of traceparent has 55 bytes, later ones may have
// more; W3C asks for 512 of tracestate to be sent on.
const (
	parentMax = 256
	stateMax  = 512
)

// Caller reads a client's span from a header of W3C Trace Context (traceparent, tracestate). It
// returns none if traceparent is missing, repeated or malformed. A malformed or overlong tracestate
// is dropped.
func Caller(h http.Header) engine.Caller {
	parents := h.Values("Traceparent")
	if len(parents) != 1 || len(parents[0]) > parentMax {
		return engine.Caller{}
	}
	carrier := propagation.MapCarrier{"traceparent": parents[0]}
	length := 0
	states := h.Values("Tracestate")
	for _, s := range states {
		length += len(s) + len(",")
	}
	if length > 0 && length-len(",") <= stateMax {
		carrier["tracestate"] = strings.Join(states, ",")
	}
	span := oteltrace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
	if !span.IsValid() {
		return engine.Caller{}
	}
	return engine.Caller{
		Trace: span.TraceID(), Span: span.SpanID(), Flags: byte(span.TraceFlags()), State: span.TraceState().String(),
	}
}

// within returns a context in which spans are children of the caller's.
func within(c engine.Caller) context.Context {
	state, _ := oteltrace.ParseTraceState(c.State) // as Caller gave it: without fault
	return oteltrace.ContextWithRemoteSpanContext(context.Background(), oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
		TraceID: c.Trace, SpanID: c.Span, TraceFlags: oteltrace.TraceFlags(c.Flags), TraceState: state, Remote: true,
	}))
}
