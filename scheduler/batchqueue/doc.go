// Package batchqueue is the durable queue behind the Batch API: uploaded files,
// batches made of them, and the result of each of their lines. It keeps their
// state and decides; its driver runs the lines.
//
// # What is durable
//
// A folder holds a bbolt database (queue.db) with the records of files and batches and
// an index of settled lines, and beside it the contents, a file each:
//
//	files/file-...           an uploaded file, or the output of a batch
//	files/batch_....answers  the answers to the lines of a running batch, one after another
//	files/file-NAME-*.part   an upload to the store of that name; useless after a crash
//
// Contents are written first and synced; then one transaction of the database makes
// them count. So whenever the process or the machine stops, everything that was
// reported as done is in the folder, and nothing else counts:
//
//   - A file counts once its record is committed: it was written to a .part and synced
//     before. Then it gets its name; the record says where it is until then.
//   - The id of a deleted file is in the database until its content is gone.
//   - So Open recognises the remains of a crash: its own uploads without a record, and
//     contents of deleted files and ended batches. It does not touch other files.
//   - An answer counts once the index has its line: place, length and checksum in the
//     .answers file, which was synced before. The batch's record says how long that file
//     is; bytes after that are overwritten. A line has at most one entry; a second answer
//     is dropped. A crash in between leaves the line open, and it is computed again.
//   - A batch has ended once its record names its output: one transaction adds the
//     records of the output files, ends the batch and drops its index.
//
// # Who calls
//
// All methods of Store are safe for concurrent use. It has no goroutine and no clock
// of its own. A driver
//
//   - validates batches that are Validating (Store.Validate),
//   - runs the open lines of batches that are InProgress (Store.Lines, Batch.Runs) and
//     settles their answers in groups, since each group costs a few syncs (Store.Settle),
//   - ends batches that are Due (Store.Expire), and
//   - finishes batches that are Ending and have no line in flight (Store.Finish).
package batchqueue
