package batchqueue

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	bolt "go.etcd.io/bbolt"
)

// checked is the result of a pass over an input file.
type checked struct {
	counts  Counts
	faults  []Fault // the first FaultsMax
	indices []int   // of faulty lines
	entries []entry // of their ends in the .answers file
	bytes   int64   // of these ends
}

// Validate reads a batch's file once and decides: it is refused when it cannot be run
// at all (no line, too many, none without a fault); else the batch runs, and its
// faulty lines are settled with what is wrong with them. It gives the batch as it is
// then, ErrState if it was cancelled or expired meanwhile. It stops when ctx ends.
func (s *Store) Validate(ctx context.Context, id string) (Batch, error) {
	b, err := s.Batch(anyOwner, id)
	if err != nil {
		return b, err
	}
	if b.Status != Validating {
		return b, fmt.Errorf("%w: validation while %s", ErrState, b.Status)
	}
	c, err := s.scan(ctx, &b)
	if errors.Is(err, ErrLost) {
		c.faults, err = []Fault{{Code: FaultMissing, Message: "the input file's content is not there any more, or not whole"}}, nil
	}
	if err != nil {
		return b, err
	}
	if refused := s.verdict(c); refused != nil {
		b, err = s.step(anyOwner, id, Event{Kind: Reject, Faults: refused})
		if err == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			err = s.dropLog(&b)
		}
		return b, err
	}
	return s.accept(id, c)
}

// verdict returns the faults for which a file is refused, or nil.
func (s *Store) verdict(c checked) []Fault {
	switch {
	case c.counts.Total > s.opt.MaxLines:
		return []Fault{{Code: FaultLines, Message: fmt.Sprintf("the file has more than %d lines", s.opt.MaxLines)}}
	case c.counts.Total > 0 && c.counts.Failed < c.counts.Total:
		return nil
	case len(c.faults) > 0:
		return c.faults
	}
	return []Fault{{Code: FaultEmpty, Message: "the file has no line"}}
}

// scan checks all lines and writes the ends of the faulty ones to the .answers file,
// where they do not count yet.
func (s *Store) scan(ctx context.Context, b *Batch) (c checked, err error) {
	f, in, err := s.input(b)
	if err != nil {
		return c, err
	}
	defer f.Close()
	s.mu.Lock()
	log, err := s.log(b)
	s.mu.Unlock()
	if err != nil {
		return c, err
	}
	out := bufio.NewWriterSize(io.NewOffsetWriter(log, 0), 64<<10)
	spec, seen := b.Spec(), names{}
	for c.counts.Total <= s.opt.MaxLines {
		if err := ctx.Err(); err != nil {
			return c, err
		}
		raw, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return c, err
		}
		c.counts.Total++
		line, fault := spec.Parse(raw)
		if line.CustomID != "" && !seen.add(line.CustomID) && fault == nil {
			fault = &Fault{
				Code: FaultDuplicate, Param: "custom_id", Line: raw.Number,
				Message: fmt.Sprintf("'custom_id' %q was used by a line before", clip(line.CustomID)),
			}
		}
		if fault == nil {
			continue
		}
		if err := c.add(out, b.ID, raw.Index, line.CustomID, fault); err != nil {
			return c, err
		}
	}
	if err := out.Flush(); err != nil {
		return c, err
	}
	return c, log.Sync()
}

// add notes a faulty line and writes its end.
func (c *checked) add(out io.Writer, batch string, index int, customID string, fault *Fault) error {
	if len(c.faults) < FaultsMax {
		c.faults = append(c.faults, *fault)
	}
	end, err := Refused(batch, index, customID, fault)
	if err != nil {
		return err
	}
	c.counts.Failed++
	c.indices = append(c.indices, index)
	c.entries = append(c.entries, entry{offset: c.bytes, bytes: uint32(len(end.Text)), sum: crc32.Checksum(end.Text, castagnoli)})
	c.bytes += int64(len(end.Text))
	_, err = out.Write(end.Text)
	return err
}

// accept lets a batch run.
func (s *Store) accept(id string, c checked) (b Batch, err error) {
	s.opt.watch("faults synced")
	s.mu.Lock()
	defer s.mu.Unlock()
	err = s.db.Update(func(tx *bolt.Tx) error {
		p, err := load[Batch](tx, batchesBucket, anyOwner, id)
		if err != nil {
			return err
		}
		if err := p.Step(Event{Kind: Accept, Counts: c.counts}, s.Now()); err != nil {
			return err
		}
		p.LogBytes = c.bytes
		index, err := tx.Bucket(linesBucket).CreateBucketIfNotExists([]byte(id))
		if err != nil {
			return err
		}
		for i, line := range c.indices {
			if err := index.Put(lineKey(line), c.entries[i].encode()); err != nil {
				return err
			}
		}
		b = *p
		return save(tx, batchesBucket, id, p)
	})
	if err == nil {
		s.own(b.Owner, share{0, c.bytes})
		s.opt.watch("batch accept")
	}
	return b, err
}
