package batchqueue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	bolt "go.etcd.io/bbolt"
)

// entry is where the end of a line lies in the .answers file.
type entry struct {
	ok     bool
	offset int64
	bytes  uint32
	sum    uint32 // CRC-32C of the text
}

const entryBytes = 1 + 8 + 4 + 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (e *entry) encode() []byte {
	b := make([]byte, 1, entryBytes)
	if e.ok {
		b[0] = 1
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(e.offset))
	b = binary.LittleEndian.AppendUint32(b, e.bytes)
	return binary.LittleEndian.AppendUint32(b, e.sum)
}

func lineKey(index int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(index)) }

func decodeEntry(k, v []byte) (index int, e entry, err error) {
	if len(k) != 4 || len(v) != entryBytes || v[0] > 1 {
		return 0, e, fmt.Errorf("%w: an entry of a line is malformed", ErrDamaged)
	}
	e = entry{
		ok: v[0] == 1, offset: int64(binary.LittleEndian.Uint64(v[1:])),
		bytes: binary.LittleEndian.Uint32(v[9:]), sum: binary.LittleEndian.Uint32(v[13:]),
	}
	return int(binary.BigEndian.Uint32(k)), e, nil
}

// group holds the lines that one commit adds to one batch.
type group struct {
	batch   *Batch
	lines   []Settled
	entries []entry
}

// Settle makes the ends of lines durable, all in one commit, and returns the number of lines that it
// settled. It drops lines that were settled before, do not exist, or belong to a batch that has
// ended: a line is settled once.
func (s *Store) Settle(lines []Settled) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	groups, err := s.sift(lines)
	if err != nil || len(groups) == 0 {
		return 0, err
	}
	for _, g := range groups {
		if err := s.append(g); err != nil {
			return 0, err
		}
	}
	s.opt.watch("answers synced")
	n, now := 0, s.Now()
	err = s.db.Update(func(tx *bolt.Tx) error {
		n = 0
		for _, g := range groups {
			e := Event{Kind: Answer}
			index, err := tx.Bucket(linesBucket).CreateBucketIfNotExists([]byte(g.batch.ID))
			if err != nil {
				return err
			}
			for i := range g.lines {
				if g.lines[i].OK {
					e.Counts.Completed++
				} else {
					e.Counts.Failed++
				}
				if err := index.Put(lineKey(g.lines[i].Index), g.entries[i].encode()); err != nil {
					return err
				}
			}
			n += len(g.lines)
			if err := g.batch.Step(e, now); err != nil {
				return err
			}
			if err := save(tx, batchesBucket, g.batch.ID, g.batch); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, g := range groups {
		for _, e := range g.entries {
			s.own(g.batch.Owner, share{0, int64(e.bytes)})
		}
	}
	s.opt.watch("answers committed")
	return n, nil
}

// sift sorts lines by batch and leaves out what is not to be settled. s.mu is held.
func (s *Store) sift(lines []Settled) ([]*group, error) {
	var groups []*group
	err := s.db.View(func(tx *bolt.Tx) error {
		byID := map[string]*group{}
		twice := map[string]map[int]bool{}
		for _, l := range lines {
			g := byID[l.Batch]
			if g == nil {
				b, err := load[Batch](tx, batchesBucket, anyOwner, l.Batch)
				if errors.Is(err, ErrNotFound) {
					continue
				}
				if err != nil {
					return err
				}
				g = &group{batch: b}
				byID[l.Batch], twice[l.Batch] = g, map[int]bool{}
			}
			if !g.batch.Runs() && !g.batch.Ending() || l.Index < 0 || l.Index >= g.batch.Counts.Total || twice[l.Batch][l.Index] {
				continue
			}
			twice[l.Batch][l.Index] = true
			if index := tx.Bucket(linesBucket).Bucket([]byte(l.Batch)); index != nil && index.Get(lineKey(l.Index)) != nil {
				continue
			}
			if g.lines = append(g.lines, l); len(g.lines) == 1 {
				groups = append(groups, g)
			}
		}
		return nil
	})
	return groups, err
}

// append writes a group's texts behind what counts of the .answers file and syncs it.
// s.mu is held.
func (s *Store) append(g *group) error {
	f, err := s.log(g.batch)
	if err != nil {
		return err
	}
	var text []byte
	for _, l := range g.lines {
		g.entries = append(g.entries, entry{
			ok: l.OK, offset: g.batch.LogBytes + int64(len(text)), bytes: uint32(len(l.Text)), sum: crc32.Checksum(l.Text, castagnoli),
		})
		text = append(text, l.Text...)
	}
	if _, err := f.WriteAt(text, g.batch.LogBytes); err != nil {
		return err
	}
	g.batch.LogBytes += int64(len(text))
	return f.Sync()
}

// log opens a batch's .answers file. s.mu is held.
func (s *Store) log(b *Batch) (*os.File, error) {
	if f := s.logs[b.ID]; f != nil {
		return f, nil
	}
	f, err := os.OpenFile(s.path(b.ID+logSuffix), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := s.syncContents(); err != nil {
		f.Close()
		return nil, err
	}
	s.logs[b.ID] = f
	return f, nil
}

// dropLog removes a batch's .answers file. s.mu is held.
func (s *Store) dropLog(b *Batch) error {
	if f := s.logs[b.ID]; f != nil {
		f.Close()
		delete(s.logs, b.ID)
	}
	s.own(b.Owner, share{0, -b.LogBytes})
	return s.unlink(b.ID + logSuffix)
}

// index reads all entries of a batch in the order of its lines.
func (s *Store) index(id string) (indices []int, entries []entry, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		lines := tx.Bucket(linesBucket).Bucket([]byte(id))
		if lines == nil {
			return nil
		}
		return lines.ForEach(func(k, v []byte) error {
			i, e, err := decodeEntry(k, v)
			indices, entries = append(indices, i), append(entries, e)
			return err
		})
	})
	return indices, entries, err
}

// Lines reads the lines of a batch that are open when it is called.
type Lines struct {
	file    io.Closer
	reader  *Reader
	spec    *Spec
	settled map[int]bool
}

// Lines opens a batch's lines. The caller must close them.
func (s *Store) Lines(b *Batch) (*Lines, error) {
	indices, _, err := s.index(b.ID)
	if err != nil {
		return nil, err
	}
	f, r, err := s.input(b)
	if err != nil {
		return nil, err
	}
	l := &Lines{file: f, reader: r, spec: b.Spec(), settled: make(map[int]bool, len(indices))}
	for _, i := range indices {
		l.settled[i] = true
	}
	return l, nil
}

// Next returns the next open line, or io.EOF. A fault means that the file was changed
// after its validation. Body is valid until the next call.
func (l *Lines) Next() (index int, line Line, fault *Fault, err error) {
	for {
		raw, err := l.reader.Next()
		if err != nil {
			return 0, Line{}, nil, err
		}
		if l.settled[raw.Index] {
			continue
		}
		line, fault := l.spec.Parse(raw)
		return raw.Index, line, fault, nil
	}
}

// Close releases the file.
func (l *Lines) Close() error { return l.file.Close() }
