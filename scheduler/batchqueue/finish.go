package batchqueue

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"

	bolt "go.etcd.io/bbolt"
)

// restLines is the largest number of lines of a cancelled or expired batch that are settled at once.
const restLines = 4096

// The codes of lines that were accepted and not run.
const (
	codeCancelled = "batch_cancelled"
	codeExpired   = "batch_expired"
	codeDamaged   = "answer_damaged"
)

// Finish writes the output of a batch that is Ending and ends it. In a cancelled or
// expired batch it first settles the open lines as such, so that every line is in the
// output or the error file. No line of the batch may be in flight. Finish can be
// called again after any failure.
func (s *Store) Finish(ctx context.Context, id string) (Batch, error) {
	b, err := s.Batch(anyOwner, id)
	if err != nil {
		return b, err
	}
	if !b.Ending() {
		return b, fmt.Errorf("%w: finish while %s", ErrState, b.Status)
	}
	if b.Counts.Open() > 0 {
		if err := s.settleRest(ctx, &b); err != nil {
			return b, err
		}
		if b, err = s.Batch(anyOwner, id); err != nil {
			return b, err
		}
	}
	j, err := s.join(ctx, &b)
	if err != nil {
		return b, err
	}
	defer j.abort()
	return s.end(id, j)
}

// settleRest settles the open lines of a batch as cancelled or expired.
func (s *Store) settleRest(ctx context.Context, b *Batch) error {
	cause := OutputError{Code: codeCancelled, Message: "the batch was cancelled before this line was run"}
	if b.End == Expired {
		cause = OutputError{Code: codeExpired, Message: "the batch's time was over before this line was run"}
	}
	var group []Settled
	add := func(index int, customID string) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		end, err := unanswered(b.ID, index, customID, cause)
		if err != nil {
			return err
		}
		if group = append(group, end); len(group) < restLines {
			return nil
		}
		_, err = s.Settle(group)
		group = group[:0]
		return err
	}
	if err := s.eachOpen(b, add); err != nil {
		return err
	}
	_, err := s.Settle(group)
	return err
}

// eachOpen calls visit for every open line. Lines that are missing from the file,
// because it was changed from outside, come without a custom id.
func (s *Store) eachOpen(b *Batch, visit func(index int, customID string) error) error {
	next := 0
	lines, err := s.Lines(b)
	switch {
	case err == nil:
		defer lines.Close()
		for {
			index, line, _, err := lines.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			if err := visit(index, line.CustomID); err != nil {
				return err
			}
			next = index + 1
		}
	case !errors.Is(err, ErrLost):
		return err
	}
	for ; next < b.Counts.Total; next++ {
		if err := visit(next, ""); err != nil { // Settle drops those that are not open
			return err
		}
	}
	return nil
}

// joined is the output of a batch before it counts.
type joined struct {
	counts      Counts
	ok, failed  *Upload
	okName      string
	failureName string
}

func (j *joined) abort() {
	j.ok.Abort()
	j.failed.Abort()
}

// join writes the ends of all lines in the order of the input: answers to one file,
// the rest to another. An end that does not have its checksum any more is replaced by
// an error, so that one bad block costs a line and not the batch.
func (s *Store) join(ctx context.Context, b *Batch) (j *joined, err error) {
	indices, entries, err := s.index(b.ID)
	if err != nil {
		return nil, err
	}
	if len(indices) != b.Counts.Total {
		return nil, fmt.Errorf("%w: %s has %d of %d lines", ErrDamaged, b.ID, len(indices), b.Counts.Total)
	}
	j = &joined{counts: Counts{Total: len(indices)}, okName: b.ID + "_output.jsonl", failureName: b.ID + "_error.jsonl"}
	if j.ok, err = s.begin(b.Owner, true); err != nil {
		return nil, err
	}
	if j.failed, err = s.begin(b.Owner, true); err != nil {
		j.ok.Abort()
		return nil, err
	}
	defer func(begun *joined) { // j is nil where err is not
		if err != nil {
			begun.abort()
		}
	}(j)
	log, err := os.Open(s.path(b.ID + logSuffix))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if log != nil {
		defer log.Close()
	}
	var text []byte
	for i, e := range entries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var whole bool
		if text, whole = read(log, e, text); !whole {
			lost := OutputError{Code: codeDamaged, Message: "the line was run, but the stored answer is damaged"}
			end, err := unanswered(b.ID, indices[i], "", lost)
			if err != nil {
				return nil, err
			}
			e.ok, text = false, end.Text
		}
		to := j.failed
		if j.counts.Failed++; e.ok {
			j.counts.Failed--
			j.counts.Completed++
			to = j.ok
		}
		if _, err := to.Write(text); err != nil {
			return nil, err
		}
	}
	return j, nil
}

// read returns the text of a line's end and reports whether its checksum is right. It uses buf if the text fits.
func read(log *os.File, e entry, buf []byte) ([]byte, bool) {
	if log == nil {
		return buf, false
	}
	info, err := log.Stat()
	if err != nil || e.offset < 0 || e.offset+int64(e.bytes) > info.Size() {
		return buf, false
	}
	if cap(buf) < int(e.bytes) {
		buf = make([]byte, e.bytes)
	}
	buf = buf[:e.bytes]
	if _, err := log.ReadAt(buf, e.offset); err != nil {
		return buf, false
	}
	return buf, crc32.Checksum(buf, castagnoli) == e.sum
}

// end commits a batch's output and its end in one transaction.
func (s *Store) end(id string, j *joined) (b Batch, err error) {
	if err := errors.Join(j.ok.sync(), j.failed.sync()); err != nil {
		return b, err
	}
	s.opt.watch("output synced")
	s.mu.Lock()
	defer s.mu.Unlock()
	placed := map[*Upload]File{}
	err = s.db.Update(func(tx *bolt.Tx) error {
		p, err := load[Batch](tx, batchesBucket, anyOwner, id)
		if err != nil {
			return err
		}
		e := Event{Kind: Finish, Counts: j.counts}
		for _, out := range []struct {
			upload *Upload
			name   string
			id     *string
		}{{j.ok, j.okName, &e.Output}, {j.failed, j.failureName, &e.Errors}} {
			if out.upload.bytes == 0 {
				continue
			}
			f, err := s.record(tx, out.upload, out.name, PurposeOutput)
			if err != nil {
				return err
			}
			placed[out.upload] = f
			*out.id = f.ID
		}
		if err := p.Step(e, s.Now()); err != nil {
			return err
		}
		if tx.Bucket(linesBucket).Bucket([]byte(id)) != nil {
			if err := tx.Bucket(linesBucket).DeleteBucket([]byte(id)); err != nil {
				return err
			}
		}
		b = *p
		return save(tx, batchesBucket, id, p)
	})
	if err != nil {
		return Batch{}, err
	}
	s.opt.watch("batch finish")
	for u, f := range placed {
		s.place(u, f)
	}
	return b, s.dropLog(&b)
}
