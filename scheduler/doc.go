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
// every idle stream of its micro-batch gets its row. What is left of
// the budget goes to prompts, one after another: at most
// PrefillChunk rows a sequence and, while any stream is in decode, at most
// PrefillShare rows together, so that a long prompt delays the streams by a
// bounded amount.
//
// # Whose turn it is
//
// Keys (Request.Key) come first, priorities second:
//
//   - Rows of prompts go to the key that was served least, in rows, by start-time fair queueing
//     (key.go): a key that comes anew starts at the virtual time of now, so it neither waits for
//     what others had before nor pays for gaps that it used. Decode rows count too.
//   - The key that has least of slots and memory is admitted first (dominant resource
//     fairness). Where its request finds no slot or no memory, sequences of keys that have
//     more than an equal share are preempted (fair.go), the last of each first. The first of
//     a key never is.
//   - A request that needs more memory than can be had is overtaken by requests of other keys that
//     need little, as far as it does not wait longer for that. Within a key nobody
//     overtakes: large ones would starve.
//   - Among requests of one key a higher level goes first, then who was preempted, then who came
//     first. A request's level is its priority and, with Config.Aging, what it gained
//     by waiting. It counts for nothing between keys.
//   - No key has more than three quarters of the places of the queue that others leave.
//
// So the first token of a request whose key has nothing else comes within
//
//	K*(ceil(P/PrefillShare)+1) + 4*(K-1) + 2*Depth
//
// batches with work, where K keys have requests, at most MaxSeqs, and P tokens of its prompt are
// not cached, if each of these keys can have one request in memory (TestFirstToken). MicroBatches
// multiply it.
//
// Background requests come after all others: they are admitted when no other waits, give
// their slots and blocks to any other that lacks them, and together have at
// most PrefillChunk rows of prompts in a batch.
//
// # Micro-batches
//
// Running streams are divided into MicroBatches: a batch has the decode rows of one, and
// each micro-batch has one batch in flight, so that parts of a machine that take turns in a
// layer (a card and a processor, or groups of layers) have something to do at the
// same time. A sequence is in one batch at most (with Ahead, see below, in one that
// is not ahead).
//
//   - MicroBatches stay even, to one stream: before a batch is made, a micro-batch with more than its
//     share gives idle ones to the smallest. One that is given away waits for that micro-batch's
//     batch to return, unless MicroBatches-1 batches have passed it by, or 2*MicroBatches-2 with Ahead:
//     then any micro-batch takes it.
//   - Prompts belong to no micro-batch. They go along with whichever micro-batch's batch is made
//     next, up to the budget, since they read most weights anyway: beside decode rows
//     they cost the least. The last rows of a prompt make its stream one of that micro-batch.
//   - Prompts that are there at the same time are divided among PrefillBatches batches.
//     With 1 all go in one and the others have decode rows alone: right where each
//     batch with prompts pays for the copies of a model's experts.
//   - One stream is in one micro-batch; the others have nothing in flight. One micro-batch is what
//     a pipeline of one part wants: weights are read once for all streams.
//
// # One step ahead
//
// With Config.Ahead the device chooses tokens itself and keeps them, so a batch
// can be sent before those of the batch in flight are known here. Each micro-batch has a
// second place for it.
//
//   - Next goes ahead when a micro-batch has one batch in flight and nothing else can be
//     done: no stream of the micro-batch is idle, no prompt could go along, none is in
//     that batch unfinished. A request that arrives is thus in the first batch after
//     those in flight, beside the micro-batch's streams; they are never split into further
//     batches for good.
//   - The batch has a decode row for every sequence whose token the batch in
//     flight will choose, the end of a prompt included, unless it has ended or
//     that token is its last by MaxNew, the micro-batch has more streams than its share, or no
//     block is free for it. Batch.After names the batch before, Span.From the row there
//     whose token it is, Span.Pos that token's position.
//   - Done comes in order: that of a batch ahead is ErrAhead until the one before
//     was reported. Then it is a batch like any other, and the next may be ahead
//     of it: two of a micro-batch are always in flight.
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
// A sequence holds blocks for what is computed and what is in flight of it. It is admitted
// when a slot is free and, beside what prompts in work still need, the blocks of all
// its known tokens and a reserve: one for each that runs and a hundredth of the pool. From
// then on it takes blocks as it comes to their borders. Where none is left, cached blocks
// give way, the one unused longest first, then sequences are preempted, the last in an
// order first: one keeps its tokens, loses slot and blocks, and waits at
// the head of its level. The order is that of how much of its key comes before a sequence, of
// one key level, then arrival (outranks). Those in flight are preempted when their batches are back. Whoever
// may take blocks from others has what comes free before those, so the first in the order
// always goes on, and everybody is served in the end (memory.go has the proof). Add refuses
// what needs more than the whole pool.
//
// # Prefixes
//
// Blocks whose tokens are known (Request.Prompt, Outcome.Tokens) are shared. When the
// batch that filled a block is back, the block is entered into a table under its tokens and
// the block before it; the first blocks come after a root for Request.Domain. A sequence
// that starts looks there, holds what it finds, and computes the rest, at least its last
// token, whose logits are needed. Tokens are compared, never hashes alone. Blocks that
// nobody holds any more stay in the table until they are needed.
//
//   - Only full blocks are shared, and nobody writes to them. A sequence that has its
//     last token in a block that is there copies it first.
//   - Two requests with one prefix at once: the second is parked until the first has
//     computed the blocks that both need, if that comes first anyway. It holds nothing
//     meanwhile.
//   - Siblings (Request.Group) wait for the first of them to have its prompt computed, and
//     then share all of it: the end of it, in a block that is not full, is copied, and one row
//     is computed. If the first ends before, the next takes its place.
//   - With RAMBlocks a cached block that gives way is saved to host memory, and loaded from
//     there when it is found. With LoadRate no batch loads so much that the streams would wait
//     longer than for a chunk of a prompt (stage.go).
//   - With Forms, for models that compute generated rows in another way than a prompt's
//     (latent attention, which is absorbed there), tokens of the one are not those of the
//     other: what an answer has left is of use to its own sequence when that was preempted,
//     and the next turn computes the answer once, as a part of its prompt. So neither a hit
//     nor a preemption changes a bit. With ReuseAnswers a request that starts takes either
//     form; what it found keeps its form when it is computed again, so a preemption still
//     changes no bit. With Singly generated rows that are computed again come one at a
//     time, beside the rows of decode.
//   - With Snapshots, for models that have state beside blocks, states are kept at the
//     ends of chunks, which are put on borders of blocks, at the end of a prompt's last
//     full block, and in decode at the last border. A sequence goes on from the last block
//     that has one. Where another waits for blocks that are being computed, a chunk ends at the
//     last of them, and it goes on from the state there.
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
// and calls Tick at the time that NextDeadline gives. The driver holds the prompt and
// the generated tokens of every request, and a span's positions index them; the core
// reads them to know blocks again.
package scheduler
