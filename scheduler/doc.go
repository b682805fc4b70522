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
// every idle stream of its lane gets its row. What is left of
// the budget goes to prompts in order of priority, then arrival: at most
// PrefillChunk rows a sequence and, while any stream is in decode, at most
// PrefillShare rows together, so that a long prompt delays the streams by a
// bounded amount.
//
// # Micro-batches
//
// Running streams are divided into Lanes: a batch has the decode rows of one, and
// each lane has one batch in flight, so that parts of a machine that take turns in a
// layer (a card and a processor, or groups of layers) have something to do at the
// same time. A sequence is in one batch at most (with Ahead, see below, in one that
// is not ahead).
//
//   - Lanes stay even, to one stream: before a batch is made, a lane with more than its
//     share gives idle ones to the smallest. One that is given away waits for that lane's
//     batch to return, unless Lanes-1 batches have passed it by, or 2*Lanes-2 with Ahead:
//     then any lane takes it.
//   - Prompts belong to no lane. They go along with whichever lane's batch is made
//     next, up to the budget, since they read most weights anyway: beside decode rows
//     they cost the least. The last rows of a prompt make its stream one of that lane.
//   - Prompts that are there at the same time are divided among PrefillBatches batches.
//     With 1 all go in one and the others have decode rows alone: right where each
//     batch with prompts pays for the copies of a model's experts.
//   - One stream is in one lane; the others have nothing in flight. One lane is what
//     a pipeline of one part wants: weights are read once for all streams.
//
// # One step ahead
//
// With Config.Ahead the device chooses tokens itself and keeps them, so a batch
// can be sent before those of the batch in flight are known here. Each lane has a
// second place for it.
//
//   - Next goes ahead when a lane has one batch in flight and nothing else can be
//     done: no stream of the lane is idle, no prompt could go along, none is in
//     that batch unfinished. A request that arrives is thus in the first batch after
//     those in flight, beside the lane's streams; they are never split into further
//     batches for good.
//   - The batch has a decode row for every sequence whose token the batch in
//     flight will choose, the end of a prompt included, unless it has ended or
//     that token is its last by MaxNew, or the lane has more streams than its share.
//     Batch.After names the batch before,
//     Span.From the row there whose token it is, Span.Pos that token's position.
//   - Done comes in order: that of a batch ahead is ErrAhead until the one before
//     was reported. Then it is a batch like any other, and the next may be ahead
//     of it: two of a lane are always in flight.
//   - A sequence that ends with the outcome of the batch before, or in between,
//     has its Ended at once and its Released when the batch ahead is back, whose
//     outcome for it is dropped unread.
//   - A batch that fails takes the one ahead with it (Voided, one retry). One
//     that fails ahead leaves the one before it in flight.
//
// A driver that cannot have the device choose for some request says so with Hold, or
// holds a batch that is ahead itself until it has reported the one before: then its
// tokens are known, and a row whose sequence has ended takes any.
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
