package batchqueue

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestOwners: nobody sees, uses or removes what is another's.
func TestOwners(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	mine := upload(t, s, "me", requests(1))
	b, err := s.Create(order(mine))
	if err != nil {
		t.Fatal(err)
	}
	upload(t, s, "you", requests(1))
	theirs := order(mine)
	theirs.Owner = "you"
	_, e1 := s.File("you", mine.ID)
	_, _, e2 := s.Content("you", mine.ID)
	_, e3 := s.Create(theirs)
	_, e4 := s.Batch("you", b.ID)
	_, e5 := s.Cancel("you", b.ID)
	_, _, e6 := s.Files("you", "", mine.ID, 10, false)
	_, _, e7 := s.Batches("you", b.ID, 10)
	for i, err := range []error{e1, e2, e3, e4, e5, e6, e7, s.Delete("you", mine.ID)} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%d: %v", i, err)
		}
	}
	files, _, err := s.Files("you", "", "", 10, false)
	if err != nil || len(files) != 1 || files[0].ID == mine.ID {
		t.Errorf("%v, %v", files, err)
	}
	if list, _, err := s.Batches("you", "", 10); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	if list, _, err := s.Batches("me", "", 10); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}

func TestPages(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	var made []string
	for range 5 {
		made = append(made, upload(t, s, "me", "x").ID)
		upload(t, s, "you", "x")
	}
	for _, oldest := range []bool{true, false} {
		var got []string
		after := ""
		for pages := 1; ; pages++ {
			list, more, err := s.Files("me", PurposeInput, after, 2, oldest)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range list {
				got = append(got, f.ID)
			}
			if !more {
				if pages != 3 {
					t.Errorf("%d pages", pages)
				}
				break
			}
			after = got[len(got)-1]
		}
		want := append([]string{}, made...)
		if !oldest {
			for i, id := range made {
				want[len(made)-1-i] = id
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%v, want %v", got, want)
		}
	}
	if list, more, err := s.Files("me", PurposeOutput, "", 2, false); err != nil || more || len(list) != 0 {
		t.Errorf("%v, %v, %v", list, more, err)
	}
}

// TestLimits: what is over a limit is refused and leaves nothing behind.
func TestLimits(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{MaxFile: 100, MaxBytes: 250, MaxFiles: 4})
	write := func(n int) (*Upload, error) {
		u, err := s.Upload("")
		if err != nil {
			return nil, err
		}
		_, err = u.Write(make([]byte, n))
		return u, err
	}
	u, err := write(101)
	if !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v", err)
	}
	if _, err := u.Commit("a", PurposeInput); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a refused upload can be kept: %v", err)
	}
	first, err := write(100)
	if err != nil {
		t.Fatal(err)
	}
	second, err := write(100)
	if err != nil {
		t.Fatal(err)
	}
	u, err = write(51)
	if !errors.Is(err, ErrFull) {
		t.Errorf("beside open uploads: %v", err)
	}
	u.Abort()
	second.Abort()
	f, err := first.Commit("a", PurposeInput)
	if err != nil {
		t.Fatal(err)
	}
	if u, err = write(100); err != nil {
		t.Errorf("after another gave up: %v", err)
	}
	u.Abort()
	if names := contentNames(t, dir); len(names) != 1 || names[0] != f.ID {
		t.Errorf("left: %v", names)
	}
	for range 3 {
		upload(t, s, "", "x")
	}
	if _, err := s.Upload(""); !errors.Is(err, ErrFull) {
		t.Errorf("a fifth file: %v", err)
	}
	if err := s.Delete("", f.ID); err != nil {
		t.Fatal(err)
	}
	upload(t, s, "", strings.Repeat("x", 100))
	if got, err := s.Totals(); err != nil || got.Bytes != 103 {
		t.Errorf("%+v, %v", got, err)
	}
	s.Close()
	if got, err := openStore(t, dir, Options{}).Totals(); err != nil || got.Bytes != 103 {
		t.Errorf("opened again: %+v, %v", got, err)
	}
}

// fullDisk is a disk that takes no more.
type fullDisk struct{ path string }

func (d fullDisk) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: d.path, Err: syscall.ENOSPC}
}

// TestDiskFull: a disk that takes no more is told like a store that holds what it may, without
// the server's paths, and nothing is left.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	for _, size := range []int{10, 100} { // found out at the end, and while it is written
		u, err := s.Upload("")
		if err != nil {
			t.Fatal(err)
		}
		u.out = bufio.NewWriterSize(fullDisk{u.part.Name()}, 64)
		_, err = u.Write(make([]byte, size))
		if (err != nil) != (size > 64) {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if _, err = u.Commit("x", PurposeInput); !errors.Is(err, ErrFull) || strings.Contains(err.Error(), dir) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(dir, "files")); err != nil || len(left) != 0 || s.used.bytes != 0 {
		t.Errorf("%v, %v, %d bytes", left, err, s.used.bytes)
	}
}

// TestForgetting: who makes many batches has its own forgotten, not another's.
func TestForgetting(t *testing.T) {
	c := newClock()
	s := openStore(t, t.TempDir(), Options{Now: c.now, MaxBatches: 4})
	ended := func(owner string) string {
		b, err := s.Create(Order{Owner: owner, Input: upload(t, s, owner, "x\n").ID, Endpoint: endpoint, Model: served, Within: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if b, err = s.Validate(t.Context(), b.ID); err != nil || b.Status != Failed {
			t.Fatalf("%+v, %v", b, err)
		}
		c.at = c.at.Add(time.Second)
		return b.ID
	}
	one := ended("a")
	var many []string
	for range 6 {
		many = append(many, ended("b"))
	}
	if _, err := s.Batch("a", one); err != nil {
		t.Errorf("the one batch of an owner: %v", err)
	}
	for i, id := range many {
		if _, err := s.Batch("b", id); (err == nil) != (i >= 3) {
			t.Errorf("batch %d of another: %v", i, err)
		}
	}
}

// TestRetention: files and batches go when their time is over, but not what a batch
// still needs; of too many batches those that ended first are forgotten.
func TestRetention(t *testing.T) {
	c := newClock()
	dir := t.TempDir()
	opt := Options{Now: c.now, Keep: time.Hour, MaxBatches: 2}
	s := openStore(t, dir, opt)
	idle := upload(t, s, "", requests(1))
	b := begin(t, s, requests(1))
	if err := s.Delete("", b.Input); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), b.ID) {
		t.Errorf("%v", err)
	}
	c.at = c.at.Add(2 * time.Hour)
	if err := s.Sweep(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.File("", idle.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	if _, err := s.Settle([]Settled{answer(t, b.ID, 0, "line-0", "a", 200)}); err != nil {
		t.Fatal(err)
	}
	b, err := s.Finish(t.Context(), b.ID)
	if err != nil || b.Status != Completed {
		t.Fatalf("%+v, %v", b, err)
	}
	c.at = c.at.Add(59 * time.Minute)
	s.Close()
	s = openStore(t, dir, opt) // Open sweeps too
	if len(outputs(t, s, "", b.Output)) != 1 {
		t.Error("no output")
	}
	if _, err := s.File("", b.Input); !errors.Is(err, ErrNotFound) {
		t.Errorf("the input is kept: %v", err)
	}
	c.at = c.at.Add(2 * time.Minute)
	if err := s.Sweep(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Batch("", b.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	if names := contentNames(t, dir); len(names) != 0 {
		t.Errorf("left: %v", names)
	}
	first := begin(t, s, "")
	second := begin(t, s, requests(1))
	third := begin(t, s, requests(1))
	if _, err := s.Batch("", first.ID); !errors.Is(err, ErrNotFound) || first.Status != Failed {
		t.Errorf("%+v, %v", first, err)
	}
	if _, err := s.Create(order(upload(t, s, "", requests(1)))); !errors.Is(err, ErrFull) {
		t.Errorf("%v", err)
	}
	if list, err := s.Active(); err != nil || len(list) != 2 || list[0].ID != second.ID || list[1].ID != third.ID {
		t.Errorf("%v, %v", list, err)
	}
}

// TestVerdicts: which files are refused, and what becomes of faulty lines in others.
func TestVerdicts(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{MaxLines: 150})
	for name, c := range map[string]struct{ text, code string }{
		"empty":    {"", FaultEmpty},
		"blank":    {"\n \n", FaultEmpty},
		"too many": {requests(151), FaultLines},
		"all bad":  {strings.Repeat("{\n", 120), FaultJSON},
	} {
		b := begin(t, s, c.text)
		if b.Status != Failed || len(b.Faults) == 0 || len(b.Faults) > FaultsMax || b.Faults[0].Code != c.code || b.EndedAt.IsZero() {
			t.Errorf("%s: %+v", name, b)
		}
	}
	b := begin(t, s, requests(150))
	if b.Status != InProgress || b.Counts.Total != 150 {
		t.Errorf("%+v", b)
	}
	b = begin(t, s, request("a")+"\n{\n\n"+request("a")+"\n"+request("b")+"\n"+strings.Replace(request("c"), "POST", "GET", 1)+"\n"+request("c"))
	if b.Status != InProgress || b.Counts != (Counts{Total: 6, Failed: 4}) {
		t.Fatalf("%+v", b)
	}
	indices, ids := openLines(t, s, &b)
	if fmt.Sprint(indices, ids) != "[0 3] [a b]" {
		t.Errorf("%v %v", indices, ids)
	}
	if n, err := s.Settle([]Settled{answer(t, b.ID, 3, "b", "x", 200), answer(t, b.ID, 0, "a", "y", 400), answer(t, b.ID, 6, "z", "z", 200)}); err != nil || n != 2 {
		t.Errorf("%d, %v", n, err)
	}
	b, err := s.Finish(t.Context(), b.ID)
	if err != nil || b.Status != Completed || b.Counts != (Counts{Total: 6, Completed: 1, Failed: 5}) {
		t.Fatalf("%+v, %v", b, err)
	}
	var got []string
	for _, o := range outputs(t, s, "", b.Errors) {
		switch {
		case o.Response != nil:
			got = append(got, fmt.Sprintf("%s %d", *o.CustomID, o.Response.StatusCode))
		case o.CustomID != nil:
			got = append(got, fmt.Sprintf("%s %s line %d", *o.CustomID, o.Error.Code, o.Error.Line))
		default:
			got = append(got, fmt.Sprintf("null %s line %d", o.Error.Code, o.Error.Line))
		}
	}
	want := "a 400; null invalid_json_line line 2; a duplicate_custom_id line 4; c invalid_method line 6; c duplicate_custom_id line 7"
	if s := strings.Join(got, "; "); s != want {
		t.Errorf("%s\nwant %s", s, want)
	}
	if list := outputs(t, s, "", b.Output); len(list) != 1 || *list[0].CustomID != "b" || string(list[0].Response.Body) != `{"said":"x"}` || list[0].Error != nil {
		t.Errorf("%+v", list)
	}
}

// TestEnds: lines that were not run are told so, whatever is left of the input.
func TestEnds(t *testing.T) {
	c := newClock()
	for name, x := range map[string]struct {
		end  func(*testing.T, *Store, *Batch) error
		want Status
		code string
	}{
		"cancelled": {func(t *testing.T, s *Store, b *Batch) error {
			_, err := s.Cancel("", b.ID)
			return err
		}, Cancelled, codeCancelled},
		"expired": {func(t *testing.T, s *Store, b *Batch) error {
			c.at = c.at.Add(25 * time.Hour)
			_, err := s.Expire(b.ID)
			return err
		}, Expired, codeExpired},
	} {
		for input, lines := range map[string]int{"whole": restLines + 100, "cut": 100, "gone": 100} {
			t.Run(name+" "+input, func(t *testing.T) {
				last := fmt.Sprintf("line-%d", lines-10)
				s := openStore(t, t.TempDir(), Options{Now: c.now})
				b := begin(t, s, requests(lines))
				if _, err := s.Finish(t.Context(), b.ID); !errors.Is(err, ErrState) {
					t.Errorf("%v", err)
				}
				if err := x.end(t, s, &b); err != nil {
					t.Fatal(err)
				}
				if n, err := s.Settle([]Settled{answer(t, b.ID, lines-10, last, "in flight", 200)}); err != nil || n != 1 {
					t.Errorf("a line in flight: %d, %v", n, err)
				}
				switch input {
				case "cut":
					if err := os.Truncate(s.path(b.Input), 1000); err != nil {
						t.Fatal(err)
					}
				case "gone":
					if err := os.Remove(s.path(b.Input)); err != nil {
						t.Fatal(err)
					}
				}
				b, err := s.Finish(t.Context(), b.ID)
				if err != nil || b.Status != x.want || b.Counts != (Counts{Total: lines, Completed: 1, Failed: lines - 1}) {
					t.Fatalf("%+v, %v", b, err)
				}
				if list := outputs(t, s, "", b.Output); len(list) != 1 || *list[0].CustomID != last {
					t.Errorf("%+v", list)
				}
				list := outputs(t, s, "", b.Errors)
				if len(list) != lines-1 || list[0].Error == nil || list[0].Error.Code != x.code || list[lines-2].ID != requestID(b.ID, lines-1) {
					t.Errorf("%d lines: %+v", len(list), list[0])
				}
				if known := list[0].CustomID != nil; known != (input != "gone") {
					t.Errorf("%+v", list[0])
				}
				if n, err := s.Settle([]Settled{answer(t, b.ID, 1, "line-1", "late", 200)}); err != nil || n != 0 {
					t.Errorf("a line after the end: %d, %v", n, err)
				}
				if _, err := s.Cancel("", b.ID); !errors.Is(err, ErrState) {
					t.Errorf("%v", err)
				}
			})
		}
	}
}

// TestDamagedAnswers: answers that are not what was written are told as lost.
func TestDamagedAnswers(t *testing.T) {
	for name, damage := range map[string]func(string) error{
		"cut":     func(path string) error { return os.Truncate(path, 200) },
		"removed": os.Remove,
		"changed": func(path string) error {
			data, err := os.ReadFile(path)
			if err == nil {
				data[len(data)-20] ^= 1
				err = os.WriteFile(path, data, 0o600)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, t.TempDir(), Options{})
			b := begin(t, s, requests(3))
			for i := range 3 {
				if _, err := s.Settle([]Settled{answer(t, b.ID, i, fmt.Sprintf("line-%d", i), "a", 200)}); err != nil {
					t.Fatal(err)
				}
			}
			if err := damage(s.path(b.ID + logSuffix)); err != nil {
				t.Fatal(err)
			}
			b, err := s.Finish(t.Context(), b.ID)
			if err != nil || b.Status != Completed || b.Counts.Failed == 0 || b.Counts.Open() != 0 {
				t.Fatalf("%+v, %v", b, err)
			}
			lost := outputs(t, s, "", b.Errors)
			if len(lost) != b.Counts.Failed || lost[0].Error.Code != codeDamaged || len(outputs(t, s, "", b.Output)) != b.Counts.Completed {
				t.Errorf("%+v", lost)
			}
		})
	}
}

// TestStops: a validation or a join that is told to stop leaves the batch as it was.
func TestStops(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	b, err := s.Create(order(upload(t, s, "", requests(10))))
	if err != nil {
		t.Fatal(err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if _, err := s.Validate(stopped, b.ID); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if b, err = s.Validate(t.Context(), b.ID); err != nil || b.Status != InProgress {
		t.Fatalf("%+v, %v", b, err)
	}
	if _, err := s.Validate(t.Context(), b.ID); !errors.Is(err, ErrState) {
		t.Errorf("%v", err)
	}
	if _, err := s.Cancel("", b.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Finish(stopped, b.ID); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if b, err = s.Finish(t.Context(), b.ID); err != nil || b.Status != Cancelled {
		t.Errorf("%+v, %v", b, err)
	}
}
