// Package scheduler decides which rows of which sequences make the next batch.
// It is a pure, deterministic core: no clock, no goroutine, no log, no tensor.
// Time and events come in as arguments; batches and effects come out as values.
// The same calls give the same decisions, so every fault can be replayed from a
// script (testdata).
//
// # Continuous batching
//
// A batch mixes decode spans (one row a running stream) with chunked prefill
// (Sarathi-Serve, arXiv 2403.02310) under a budget of rows. Decode comes first:
// every idle stream that the batch has room for gets its row. What is left of
// the budget goes to prompts in order of priority, then arrival: at most
// PrefillChunk rows a sequence and, while any stream is in decode, at most
// PrefillShare rows together, so that a long prompt delays the streams by a
// bounded amount.
//
// Up to Depth batches are in flight at once, one for each layer group of a
// pipeline. A sequence is in one of them at most (with Ahead, see below, in one
// of the Depth-1 that are not ahead). A batch takes at most its
// share (the number of sequences in decode, or in prefill, divided by Depth and
// rounded up), which keeps the batches even. A stream's next row is in one of the
// Depth batches that are made after its last one came back.
//
// # One step ahead
//
// With Config.Ahead the device chooses tokens itself and keeps them, so a batch
// can be sent before those of the batch in flight are known here. One of the
// Depth places is kept for it; the others are as above, with Depth-1 for Depth.
//
//   - Next goes ahead when exactly one batch is in flight and nothing else can be
//     done: no sequence is idle, the head of the queue could not be admitted, no
//     part of an unfinished prompt is in flight. A request that arrives is thus in
//     the first batch after those in flight, beside all streams; they are never
//     split into batches of their own for good.
//   - The batch has a decode row for every sequence whose token the batch in
//     flight will choose, the end of a prompt included, unless it has ended or
//     that token is its last by MaxNew. Batch.After names the batch before,
//     Span.From the row there whose token it is, Span.Pos that token's position.
//   - Done comes in order: that of a batch ahead is ErrAhead until the one before
//     was reported. Then it is a batch like any other, and the next may be ahead
//     of it: two are always in flight.
//   - A sequence that ends with the outcome of the batch before, or in between,
//     has its Ended at once and its Released when the batch ahead is back, whose
//     outcome for it is dropped unread.
//   - A batch that fails takes the one ahead with it (Voided, one retry). One
//     that fails ahead leaves the one before it in flight.
//
// A driver that cannot have the device choose for some request holds a batch that
// is ahead until it has reported the one before: then its tokens are known, and a
// row whose sequence has ended takes any.
//
// # Memory
//
// A sequence is admitted when a slot and the KV blocks for its prompt and its
// longest answer are free; it holds them to its end. So whatever has started
// can finish, and a request that fits the pool alone is never stuck. Nobody
// overtakes the head of the queue within its priority.
//
// # The driver
//
// The owner of a Core (one goroutine, an actor) does this after every event:
//
//	c.Done(...) or c.Fail(...) or c.Add(...) or c.Cancel(...)
//	for {
//		b, ok := c.Next(now)
//		carry out c.Effects(), in order
//		if !ok { break }
//		send b to the first layer group
//	}
//
// and calls Tick at the time that NextDeadline gives. The core never keeps
// token ids: the driver holds the prompt and the generated tokens of every
// request, and a span's positions index them.
package scheduler
