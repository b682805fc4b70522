package batchqueue

import (
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// recordsBucket has records of others that lie beside the queue: name -> bytes. A database that an older version made gets it with the first one.
var recordsBucket = []byte("records")

// SaveRecords makes changes of records durable, all or none of them: each name gets a new value, or with nil it goes. Names are
// not empty. The store knows nothing of what they say; the caller bounds them.
func (s *Store) SaveRecords(changes map[string][]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.db.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(recordsBucket)
		for name, value := range changes {
			switch {
			case err != nil:
				return err
			case value == nil:
				err = b.Delete([]byte(name))
			default:
				err = b.Put([]byte(name), value)
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%d records: %w", len(changes), err)
	}
	s.noted = true
	s.opt.watch("records saved")
	return nil
}

// Records calls f with all records. The value is valid until f returns.
func (s *Store) Records(f func(name string, value []byte) error) error {
	return s.db.View(func(tx *bolt.Tx) error {
		b := tx.Bucket(recordsBucket)
		if b == nil {
			return nil
		}
		return b.ForEach(func(name, value []byte) error { return f(string(name), value) })
	})
}
