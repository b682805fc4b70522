// Package scheduler decides which rows of which sequences make the next batch.
// It is a pure, deterministic core: no clock, no goroutine, no log, no tensor.
// Time and events are arguments; batches and effects are results. The same calls
// give the same decisions, so a script can replay every fault (testdata).
//
// # Continuous batching
//
// A batch mixes decode spans (one row for each running stream) with chunked prefill
// (Sarathi-Serve, arXiv 2403.02310) under a budget of rows. Decode comes first:
// every idle stream of the batch's micro-batch gets its row. Prompts get the rest of
// the budget, one after another: at most PrefillChunk rows per sequence and, while any
// stream is in decode, at most PrefillShare rows together. So a long prompt delays the
// streams by a bounded time.
//
// If a batch of many rows costs copies of a model's experts, whatever its rows are (PassRows), prompts that come while streams are in decode collect
// for such a pass, and passes take at most a share of the time (PassShare). Short ones do not wait (PassMixed). The time of a pass is from the
// Next that made it to the one after its return.
//
// # Order of requests
//
// Keys (Request.Key) come first, priorities second:
//
//   - The key that was served fewest rows gets the next rows of prompts, by start-time fair
//     queueing (key.go). A new key starts at the current virtual time. So it does not wait for
//     what others received before, and does not pay for idle time that it used. Decode rows
//     count too.
//   - The key that holds least of slots and memory is admitted first (dominant resource
//     fairness). If its request finds no slot or no memory, sequences of keys that hold more
//     than an equal share are preempted (fair.go), the last of each key first. The first
//     sequence of a key is never preempted for this.
//   - If a request needs more memory than is available, small requests of other keys may
//     overtake it, as long as it does not wait longer for that. Within a key no request
//     overtakes another, because large ones would starve.
//   - Among the requests of one key a higher level goes first, then those that were preempted,
//     then the earlier arrival. A request's level is its priority plus what it gained by
//     waiting (Config.Aging). Levels do not count between keys.
//   - No key has more than three quarters of the places of the queue that others leave.
//
// So the first token of a request whose key has no other request comes within
//
//	K*(ceil(P/PrefillShare)+1) + 4*(K-1) + 2*Depth
//
// batches with work (without PassRows), where K keys have requests, at most MaxSeqs, and P tokens of its prompt are
// not cached, if each of these keys can have one request in memory (TestFirstToken). The bound
// is multiplied by the number of micro-batches.
//
// Background requests come after all others. They are admitted when no other request waits, give
// their slots and blocks to any request that lacks them, and together have at most PrefillChunk
// rows of prompts in a batch.
//
// # Micro-batches
//
// Running streams are divided into micro-batches. A batch has the decode rows of one of them, and
// each has one batch in flight. So parts of a machine that take turns within a layer (a GPU and a
// CPU, or layer groups) work at the same time. A sequence is in at most one batch (with Ahead, see
// below, in one that is not ahead).
//
//   - Micro-batches stay equal, to one stream. Before a batch is made, a micro-batch with more
//     than its share gives idle streams to the smallest. Such a stream waits until the batch of
//     its new micro-batch returns, unless MicroBatches-1 batches have passed it by, or
//     2*MicroBatches-2 with Ahead: then any micro-batch takes it.
//   - Prompts belong to no micro-batch. They join whichever batch is made next, up to the
//     budget, because decode rows read most weights anyway: beside them prompts cost least. The
//     stream joins the micro-batch of the batch that has its prompt's last rows.
//   - Prompts that wait at the same time are divided among PrefillBatches batches. With 1 they
//     all join one batch, and the others have decode rows only. That is right where each batch
//     with prompts pays for copies of a model's experts.
//   - A single stream is in one micro-batch, and the others have nothing in flight. A pipeline
//     of one part wants one micro-batch, so that weights are read once for all streams.
//
// # One step ahead
//
// With Config.Ahead the device chooses tokens itself and keeps them. So a batch can be sent
// before the tokens of the batch in flight are known here. Each micro-batch has a second
// place for it.
//
//   - Next makes such a batch when a micro-batch has one batch in flight and there is no other
//     work for it: no stream of the micro-batch is idle, no prompt could join, and the batch in
//     flight has no unfinished prompt. So a request that arrives is in the first batch
//     after those in flight, beside the streams of the micro-batch, which are never split into
//     more batches.
//   - The batch has a decode row for every sequence whose token the batch in flight will choose,
//     the end of a prompt included. It leaves out a sequence that has ended, whose token is its
//     last by MaxNew, that exceeds the share of the micro-batch, or for which no block is free.
//     Batch.After names the batch before, Span.From the row there whose token is taken, and
//     Span.Pos that token's position.
//   - Done comes in order. For a batch that is ahead it returns ErrAhead until the one before
//     was reported. Then it is a batch like any other, and the next may be ahead of it: two
//     batches of a micro-batch are always in flight.
//   - A sequence that ends with the outcome of the batch before, or in between, has its Ended at
//     once. Its Released comes when the batch ahead is back, whose outcome for it is dropped.
//   - A batch that fails takes the one ahead with it (Voided, one retry). One that fails ahead
//     leaves the one before it in flight.
//
// With Config.Follow, which excludes Ahead, a prompt has chunks in batches of several micro-batches, each behind the rows of
// those before it (Batch.Follows). Done comes in order for batches with a common sequence, and a batch that fails takes those
// that follow it with it (Voided).
//
// If the device cannot choose the token of some request, the driver says so with Hold, or holds a
// batch that is ahead itself until it has reported the one before. Then its tokens are known, and
// a row whose sequence has ended takes any token.
//
// # Memory
//
// A sequence holds blocks for what is computed and for what is in flight. It is admitted when a
// slot is free and there are blocks for all its known tokens, beside those that prompts in work
// still need and a reserve: one block for each running sequence and a hundredth of the pool. Then
// it takes blocks as it comes to their borders. If no block is free, cached blocks are evicted,
// least recently used first. Then sequences are preempted, the last in an order first: a
// preempted sequence keeps its tokens, loses slot and blocks, and waits at the head of its level.
// The order is by how much of its key comes before a sequence, within a key by level, then by
// arrival (outranks). Sequences in flight are preempted when their batches are back. A sequence
// that may take blocks from others gets free ones before those do, so the first in the order
// always goes on, and every request is served in the end (memory.go has the proof). Add refuses
// what needs more than the whole pool.
//
// The memory of blocks may be of use to something else. Demand is how many blocks there should be, and Resize
// has the last ones not be used, or be used again. The driver calls it before Next, and once more where Next makes no batch.
//
// # Prefixes
//
// Blocks whose tokens are known (Request.Prompt, Outcome.Tokens) are shared. When the
// batch that filled a block is back, the block is entered into a table under its tokens and
// the block before it. The first blocks come after a root for Request.Domain. A sequence
// that starts looks there, holds what it finds, and computes the rest: at least its last
// token, whose logits are needed. Tokens are compared, never hashes alone. Blocks that no
// sequence holds stay in the table until they are needed.
//
//   - Only full blocks are shared, and no sequence writes to them. A sequence whose last token
//     is in a cached block copies that block first.
//   - A sequence that ends leaves its last block, which is not full, as a part. A request that goes on
//     from it copies it. An edit within a full block costs the rows before it in that block.
//   - If two requests with one prefix arrive together, the second is parked until the first has
//     computed the blocks that both need, provided that the first comes first anyway. A parked
//     request holds nothing.
//   - Siblings (Request.Group) wait until the first of them has computed its prompt, and then
//     share all of it: the last block, which is not full, is copied, and one row is computed.
//     If the first ends before, the next takes its place.
//   - With RAMBlocks a cached block that is evicted is saved to host memory, and loaded from
//     there when it is found. With LoadRate no batch loads so much that the streams would wait
//     longer than for a chunk of a prompt (stage.go).
//   - With Classes, for models that compute rows of generated tokens differently from rows of a
//     prompt (latent attention is absorbed there), cached rows of one numerics class are not used
//     for the other. What an answer left serves its own sequence after a preemption; the next
//     turn computes the answer once, as a part of its prompt. So neither a hit nor a preemption
//     changes a bit. With ReuseAnswers a request that starts takes either class; what it found
//     keeps its class when it is computed again, so a preemption still changes no bit. With
//     RecomputeSingly generated rows that are computed again come one at a time, beside the
//     decode rows.
//   - With Snapshots, for models that have state beside blocks, states are kept at the ends of
//     chunks, which are put on borders of blocks, at the end of a prompt's last full block, and
//     in decode at the last border. At the ends of turns (Request.Turns) they are kept where these are,
//     with a copy of the block as a part. A sequence continues from the last block that has one. Where
//     another waits for blocks that are being computed, a chunk ends at the last of them, and
//     the other continues from the state there.
//   - With Window, for models in which some layers see only the newest tokens, these layers have
//     blocks of their own (window.go). A sequence gives them up as it goes on, and continues from the
//     last cached block before which the window is there.
//
// Copies, saves and loads are Moves of the batch whose rows need them.
//
// # The driver
//
// The owner of a Core (one goroutine, an actor) does this after every event:
//
//	c.Done(...) or c.Fail(...) or c.Gone(...) or c.Add(...) or c.Cancel(...)
//	for {
//		b, ok := c.Next(now)
//		carry out c.Effects(), in order
//		if !ok { break }
//		send b to the first layer group
//	}
//
// and calls Tick at the time that NextDeadline returns. The driver keeps the prompt and
// the generated tokens of every request, and a span's positions index them; the core
// reads them to recognise blocks.
package scheduler
