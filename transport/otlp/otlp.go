// Package otlp sends a span to an OpenTelemetry collector for every request that has ended; child
// spans cover its time in the queue, in the prompt and in the answer. The spans are made from the
// actors' trace afterwards, so they do not slow requests down.
package otlp

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"

	"krater/actors/engine"
	"krater/actors/trace"
)

// Source reports requests. All methods are safe for concurrent use.
type Source interface {
	Info() engine.Info
	// Trace is nil while the model is loading.
	Trace() *trace.Registry
	// Origin describes a request that runs or ended recently; it is the zero value for others.
	Origin(request uint64) engine.Origin
}

// ringName is the name of the actor that records requests.
const ringName = "stream"

// every is the interval at which new events are read; a ring holds a few seconds.
const every = 500 * time.Millisecond

// prefillsMax bounds the requests that have their first token and no end.
const prefillsMax = 1 << 16

// Exporter follows a source until it is closed.
type Exporter struct {
	src      Source
	log      zerolog.Logger
	provider *sdk.TracerProvider
	tracer   oteltrace.Tracer
	stop     chan struct{}
	done     chan struct{}

	// Of the goroutine's own.
	next     uint64                 // event of the ring
	prefills map[uint64]trace.Event // by request
}

// Open starts to send to a collector's address, such as http://127.0.0.1:4318, over HTTP;
// /v1/traces is added if it has no path. An unreachable collector is retried for a minute; spans
// that it does not receive are lost, and the log says so. The library reports failures in one place
// per process, which an exporter takes over.
func Open(endpoint, version string, src Source, log zerolog.Logger) (*Exporter, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%q is no address such as http://127.0.0.1:4318", endpoint)
	}
	if strings.Trim(u.Path, "/") == "" {
		u = u.JoinPath("v1/traces")
	}
	client, err := otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL(u.String()))
	if err != nil {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn().Err(err).Msg("spans") }))
	e := &Exporter{src: src, log: log, stop: make(chan struct{}), done: make(chan struct{}), prefills: map[uint64]trace.Event{}}
	sampler := sdk.ParentBased(sdk.AlwaysSample())
	e.provider = sdk.NewTracerProvider(sdk.WithBatcher(client), sdk.WithSampler(sampler), sdk.WithResource(resource.NewSchemaless(
		attribute.String("service.name", "krater"), attribute.String("service.version", version),
	)))
	e.tracer = e.provider.Tracer("krater")
	go e.follow()
	return e, nil
}

// Close sends the remaining spans. The error is that of ctx.
func (e *Exporter) Close(ctx context.Context) error {
	close(e.stop)
	<-e.done
	return e.provider.Shutdown(ctx)
}

func (e *Exporter) follow() {
	defer close(e.done)
	tick := time.NewTicker(every)
	defer tick.Stop()
	var events []trace.Event
	for over := false; !over; {
		select {
		case <-e.stop:
			over = true
		case <-tick.C:
		}
		if g := e.src.Trace(); g != nil {
			events = e.read(g.Ring(ringName), events[:0])
		}
	}
}

// read makes spans of new events in the ring. It returns the list for reuse.
func (e *Exporter) read(ring *trace.Ring, events []trace.Event) []trace.Event {
	from := e.next
	events, e.next = ring.Read(events, from)
	if lost := e.next - from - uint64(len(events)); lost > 0 {
		e.log.Warn().Uint64("events", lost).Msg("spans may be missing: the trace was overwritten before it was read")
	}
	for i := range events {
		switch ev := &events[i]; ev.Kind {
		case trace.Prefill:
			if len(e.prefills) >= prefillsMax { // requests whose end was overwritten
				clear(e.prefills)
			}
			e.prefills[ev.Request] = *ev
		case trace.Request:
			e.span(ev, e.src.Origin(ev.Request))
			delete(e.prefills, ev.Request)
		}
	}
	return events
}

// span sends a request that has ended: as a part of its caller's trace, if it has one, and not if
// the caller's span is not sampled. Attributes follow OpenTelemetry's conventions for generative
// models where they have one.
func (e *Exporter) span(r *trace.Event, from engine.Origin) {
	model := e.src.Info().ID
	came := r.Enqueued
	if came == 0 {
		came = r.Started
	}
	attributes := []attribute.KeyValue{
		attribute.String("gen_ai.operation.name", "chat"), attribute.String("gen_ai.request.model", model),
		attribute.Int64("gen_ai.usage.output_tokens", int64(r.Rows)), attribute.Int64("krater.request", int64(r.Request)),
	}
	if from.Name != "" {
		attributes = append(attributes, attribute.String("gen_ai.response.id", from.Name))
	}
	prefill, answered := e.prefills[r.Request]
	if answered {
		attributes = append(attributes, attribute.Float64("krater.time_to_first_token", float64(prefill.Ended-came)/1e9))
	}
	ctx, whole := e.tracer.Start(within(from.Caller), "chat "+model, oteltrace.WithTimestamp(trace.Wall(came)),
		oteltrace.WithSpanKind(oteltrace.SpanKindServer), oteltrace.WithAttributes(attributes...))
	part := func(name string, from, to int64, attributes ...attribute.KeyValue) {
		_, s := e.tracer.Start(ctx, name, oteltrace.WithTimestamp(trace.Wall(from)), oteltrace.WithAttributes(attributes...))
		s.End(oteltrace.WithTimestamp(trace.Wall(to)))
	}
	part("queue", came, r.Started)
	if answered {
		part("prefill", prefill.Started, prefill.Ended, attribute.Int64("krater.rows", int64(prefill.Rows)))
		part("decode", prefill.Ended, r.Ended, attribute.Int64("krater.rows", int64(max(1, r.Rows)-1)))
	}
	whole.End(oteltrace.WithTimestamp(trace.Wall(r.Ended)))
}
