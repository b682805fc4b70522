package batchqueue

import (
	"errors"
	"maps"
	"path/filepath"
	"testing"
)

func records(t *testing.T, s *Store) map[string]string {
	t.Helper()
	all := map[string]string{}
	if err := s.Records(func(name string, value []byte) error { all[name] = string(value); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestRecords: records are there when the store is opened again; several change together, or none does.
func TestRecords(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	if got := records(t, s); len(got) != 0 {
		t.Errorf("a new store has %v", got)
	}
	save := func(changes map[string][]byte) {
		t.Helper()
		if err := s.SaveRecords(changes); err != nil {
			t.Fatal(err)
		}
	}
	save(map[string][]byte{"a": []byte("1"), "b": []byte("2"), "c": {}})
	save(map[string][]byte{"a": nil, "b": []byte("3"), "d": nil})
	if err := s.SaveRecords(map[string][]byte{"b": nil, "c": nil, "": []byte("x")}); err == nil {
		t.Error("a record without a name")
	}
	want := map[string]string{"b": "3", "c": ""}
	for range 2 {
		if got := records(t, s); !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openStore(t, dir, Options{})
	}
	fault := errors.New("stop")
	if err := s.Records(func(string, []byte) error { return fault }); !errors.Is(err, fault) {
		t.Error(err)
	}
}

// TestRecordsKeepTheFolder: a store that has nothing but records is not withdrawn.
func TestRecordsKeepTheFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "queue")
	s := openStore(t, dir, Options{})
	if err := s.SaveRecords(map[string][]byte{"a": []byte("1")}); err != nil {
		t.Fatal(err)
	}
	if err := s.Withdraw(); err != nil {
		t.Fatal(err)
	}
	if got := records(t, openStore(t, dir, Options{})); got["a"] != "1" {
		t.Errorf("%v", got)
	}
}
