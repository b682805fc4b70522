package batchqueue

import (
	"fmt"
	"os"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
)

// Order holds the client's parameters of a new batch.
type Order struct {
	Owner, Model, Endpoint string
	Input                  string // id of a file of the owner's
	Window                 string // as the client wrote it
	Within                 time.Duration
	Metadata               map[string]string
}

// Create makes a batch, which must then be validated. If the store remembers too many batches, it forgets
// the ones that ended first of the owner with the most; their files stay.
func (s *Store) Create(o Order) (Batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Now()
	b := Batch{
		Owner: o.Owner, Model: o.Model, Endpoint: o.Endpoint, Input: o.Input, Window: o.Window, Metadata: o.Metadata,
		Status: Validating, Created: now, Expires: now.Add(o.Within),
	}
	err := s.db.Update(func(tx *bolt.Tx) error {
		f, err := load[File](tx, filesBucket, o.Owner, o.Input)
		if err != nil {
			return err
		}
		if f.Purpose != PurposeInput {
			return fmt.Errorf("%w: its purpose is '%s'", ErrPurpose, f.Purpose)
		}
		if err := s.forget(tx, o.Owner); err != nil {
			return err
		}
		if b.ID, err = newID(tx.Bucket(batchesBucket), batchPrefix); err != nil {
			return err
		}
		return save(tx, batchesBucket, b.ID, &b)
	})
	if err != nil {
		return Batch{}, full(err)
	}
	s.opt.watch("batch created")
	return b, nil
}

// forget makes room for one batch of an owner's: of those that ended, the first of the owner
// that has most.
func (s *Store) forget(tx *bolt.Tx, owner string) error {
	var ended []*Batch
	all, of, open := 0, map[string]int{}, 0
	err := each(tx, batchesBucket, func(b *Batch) error {
		all++
		of[b.Owner]++
		if b.Status.Ended() {
			ended = append(ended, b)
		} else if b.Owner == owner {
			open++
		}
		return nil
	})
	if err != nil {
		return err
	}
	if each := part(int64(s.opt.MaxBatches), s.opt.Shared); s.opt.Shared && int64(open) >= each {
		return fmt.Errorf("%w for this key: %d of its batches have not ended, and it may have %d of the %d of all keys", ErrFull, open, each, s.opt.MaxBatches)
	}
	slices.SortStableFunc(ended, func(a, b *Batch) int { return a.EndedAt.Compare(b.EndedAt) })
	for ; all >= s.opt.MaxBatches; all-- {
		if len(ended) == 0 {
			return fmt.Errorf("%w: %d batches have not ended, and it may have %d", ErrFull, all, s.opt.MaxBatches)
		}
		first := 0
		for i, b := range ended {
			if of[b.Owner] > of[ended[first].Owner] {
				first = i
			}
		}
		gone := ended[first]
		if err := tx.Bucket(batchesBucket).Delete([]byte(gone.ID)); err != nil {
			return err
		}
		of[gone.Owner]--
		ended = slices.Delete(ended, first, first+1)
	}
	return nil
}

// Batch returns an owner's batch.
func (s *Store) Batch(owner, id string) (b Batch, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		p, err := load[Batch](tx, batchesBucket, owner, id)
		if err == nil {
			b = *p
		}
		return err
	})
	return b, err
}

// Batches lists an owner's batches, the newest first.
func (s *Store) Batches(owner, after string, limit int) (list []Batch, more bool, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		list, more, err = page(tx, batchesBucket, owner, after, limit, false, func(*Batch) bool { return true })
		return err
	})
	return list, more, err
}

// Active lists all batches that have not ended, ordered by the end of their time.
func (s *Store) Active() (list []Batch, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		return each(tx, batchesBucket, func(b *Batch) error {
			if !b.Status.Ended() {
				list = append(list, *b)
			}
			return nil
		})
	})
	slices.SortStableFunc(list, func(a, b Batch) int { return a.Expires.Compare(b.Expires) })
	return list, err
}

// Totals counts the batches and lines in the store.
type Totals struct {
	Batches map[Status]int
	Lines   Counts // Total counts those of validated files
	// Waiting are the open lines of batches that run.
	Waiting int
	Bytes   int64 // of contents
}

// Totals counts batches and lines.
func (s *Store) Totals() (t Totals, err error) {
	t.Batches = map[Status]int{}
	err = s.db.View(func(tx *bolt.Tx) error {
		return each(tx, batchesBucket, func(b *Batch) error {
			t.Batches[b.Status]++
			t.Lines.Total += b.Counts.Total
			t.Lines.Completed += b.Counts.Completed
			t.Lines.Failed += b.Counts.Failed
			if b.Runs() {
				t.Waiting += b.Counts.Open()
			}
			return nil
		})
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Bytes = s.used.bytes
	return t, err
}

// Cancel requests the end of an owner's batch. No further line of it starts.
func (s *Store) Cancel(owner, id string) (Batch, error) {
	return s.step(owner, id, Event{Kind: Cancel})
}

// Expire ends a batch whose time is over. Its lines in flight may still be settled.
func (s *Store) Expire(id string) (Batch, error) {
	return s.step(anyOwner, id, Event{Kind: Expire})
}

// step carries a batch over one event, durably.
func (s *Store) step(owner, id string, e Event) (b Batch, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err = s.db.Update(func(tx *bolt.Tx) error {
		p, err := load[Batch](tx, batchesBucket, owner, id)
		if err != nil {
			return err
		}
		if err := p.Step(e, s.Now()); err != nil {
			return err
		}
		b = *p
		return save(tx, batchesBucket, id, p)
	})
	if err == nil {
		s.opt.watch("batch " + string(e.Kind))
	}
	return b, err
}

// Spec returns the endpoint and model that every line of the batch must name.
func (b *Batch) Spec() *Spec { return &Spec{Endpoint: b.Endpoint, Model: b.Model} }

// input opens a batch's file; the caller closes it. What is left of one that is not whole
// any more will do where no line of it is to be run.
func (s *Store) input(b *Batch) (*os.File, *Reader, error) {
	record, err := s.File(anyOwner, b.Input)
	if err != nil {
		return nil, nil, err
	}
	f, err := s.openContent(&record, !b.Ending())
	if err != nil {
		return nil, nil, err
	}
	return f, NewReader(f, s.opt.MaxLine), nil
}
