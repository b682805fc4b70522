package batchqueue

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// life is a store under random use, beside what it has been seen to promise.
type life struct {
	t       *testing.T
	r       *rand.Rand
	dir     string
	store   *Store
	clock   *clock
	files   map[string]string   // id -> content that was reported as kept
	deleted map[string]bool     // ids reported as gone
	going   string              // id of the file that is being deleted: there or not
	batches map[string]*promise // by id
	points  map[string]int      // what it was interrupted after
	serial  int                 // makes texts differ
	opt     Options
}

// promise holds the state of a batch as its client knows it.
type promise struct {
	ids     []string       // custom ids of its lines, "" where the line is faulty
	input   string         // file
	settled map[int]string // line -> text that was reported as settled
	tried   map[int][]string
	ended   *Batch
}

func (l *life) options() Options {
	return Options{Now: l.clock.now, watch: l.point, MaxBatches: 1000}
}

// point is called after everything durable: now and then the world as it is there is
// looked at as if the process had been killed.
func (l *life) point(where string) {
	if l.points[where]++; l.points[where] > 3 && l.r.IntN(12) > 0 {
		return
	}
	dir := copyStore(l.t, l.dir)
	defer os.RemoveAll(dir)
	s, err := Open(dir, Options{Now: l.clock.now})
	if err != nil {
		l.t.Fatalf("after a crash behind '%s': %v", where, err)
	}
	defer s.Close()
	l.survived(s, where)
}

// survived holds a store to all promises and then brings every batch to its end.
func (l *life) survived(s *Store, where string) {
	l.t.Helper()
	for id, text := range l.files {
		if got := content(l.t, s, "", id); got != text {
			l.t.Fatalf("behind '%s' %s has %q, want %q", where, id, got, text)
		}
	}
	for id := range l.deleted {
		if _, err := s.File("", id); err == nil {
			l.t.Fatalf("behind '%s' %s is there again", where, id)
		}
	}
	known := map[string]bool{}
	list, _, err := s.Files("", "", "", 1000, true)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, f := range list {
		known[f.ID] = true
	}
	active, err := s.Active()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, b := range active {
		known[b.ID+logSuffix] = true
	}
	for _, name := range contentNames(l.t, s.dir) {
		if !known[name] {
			l.t.Fatalf("behind '%s' %s is left", where, name)
		}
	}
	for id, p := range l.batches {
		b, err := s.Batch("", id)
		if err != nil {
			l.t.Fatalf("behind '%s': %v", where, err)
		}
		if p.ended != nil && mustJSON(l.t, p.ended) != mustJSON(l.t, b) {
			l.t.Fatalf("behind '%s' %s became %s", where, mustJSON(l.t, p.ended), mustJSON(l.t, b))
		}
		l.toEnd(s, b, p, where)
	}
	err = s.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(linesBucket).ForEachBucket(func(id []byte) error {
			return fmt.Errorf("the lines of %s are left", id)
		})
	})
	if err != nil {
		l.t.Fatalf("behind '%s': %v", where, err)
	}
}

// toEnd runs what is left of a batch and looks at its output.
func (l *life) toEnd(s *Store, b Batch, p *promise, where string) {
	l.t.Helper()
	var err error
	if b.Status == Validating {
		if b, err = s.Validate(l.t.Context(), b.ID); err != nil {
			l.t.Fatalf("behind '%s': %v", where, err)
		}
	}
	if b.Runs() {
		indices, ids := openLines(l.t, s, &b)
		var group []Settled
		for i, index := range indices {
			group = append(group, answer(l.t, b.ID, index, ids[i], "after the crash", 200))
		}
		if n, err := s.Settle(group); err != nil || n != len(group) {
			l.t.Fatalf("behind '%s': %d of %d open lines were settled, %v", where, n, len(group), err)
		}
		if b, err = s.Batch("", b.ID); err != nil {
			l.t.Fatal(err)
		}
	}
	if b.Ending() {
		if b, err = s.Finish(l.t.Context(), b.ID); err != nil {
			l.t.Fatalf("behind '%s': %v", where, err)
		}
	}
	if !b.Status.Ended() {
		l.t.Fatalf("behind '%s' %s stays %s", where, b.ID, b.Status)
	}
	l.checkOutput(s, &b, p, where)
}

// checkOutput: every accepted line is in one file once, in order, and one that was
// reported as settled is as it was then.
func (l *life) checkOutput(s *Store, b *Batch, p *promise, where string) {
	l.t.Helper()
	if b.Counts.Total == 0 {
		return
	}
	if b.Counts.Total != len(p.ids) || b.Counts.Open() != 0 {
		l.t.Fatalf("behind '%s' %+v of %d lines", where, b.Counts, len(p.ids))
	}
	found := map[int]string{}
	for _, id := range []string{b.Output, b.Errors} {
		if id == "" || id == l.going || l.deleted[id] {
			continue
		}
		last := -1
		for text := range strings.Lines(content(l.t, s, "", id)) {
			index := indexOf(l.t, text)
			if index <= last {
				l.t.Fatalf("behind '%s' line %d comes after %d", where, index, last)
			}
			if last = index; found[index] != "" {
				l.t.Fatalf("behind '%s' line %d is in both files", where, index)
			}
			found[index] = text
			want := fmt.Sprintf(`"custom_id":%q`, p.ids[index])
			if p.ids[index] == "" {
				want = `"custom_id":null`
			}
			if !strings.Contains(text, want) {
				l.t.Fatalf("behind '%s' line %d is %s, want %s", where, index, text, want)
			}
		}
	}
	if whole := !l.deleted[b.Output] && !l.deleted[b.Errors] && (l.going == "" || l.going != b.Output && l.going != b.Errors); whole && len(found) != len(p.ids) {
		l.t.Fatalf("behind '%s' %d of %d lines are in the files", where, len(found), len(p.ids))
	}
	for index, text := range p.settled {
		if got, there := found[index]; there && got != text {
			l.t.Fatalf("behind '%s' line %d became %s, it was settled as %s", where, index, got, text)
		}
	}
	for index, text := range found {
		fresh := strings.Contains(text, "after the crash") || strings.Contains(text, `"response":null`)
		if p.settled[index] == "" && !fresh && !slices.Contains(p.tried[index], text) {
			l.t.Fatalf("behind '%s' nobody answered line %d with %s", where, index, text)
		}
	}
}

// indexOf reads a line's index from its id.
func indexOf(t *testing.T, text string) (index int) {
	t.Helper()
	_, rest, _ := strings.Cut(text, `"id":"batch_req_`)
	_, rest, _ = strings.Cut(rest, "_")
	if _, err := fmt.Sscanf(rest, `%d"`, &index); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return index
}

// TestCrashes: after a kill behind any write the store keeps every promise, and each
// line comes out once.
func TestCrashes(t *testing.T) {
	rounds, steps := 12, 60
	if testing.Short() {
		rounds = 4
	}
	points := map[string]int{}
	for round := range rounds {
		l := &life{
			t: t, r: rand.New(rand.NewPCG(7, uint64(round))), dir: t.TempDir(), clock: newClock(),
			files: map[string]string{}, deleted: map[string]bool{}, batches: map[string]*promise{}, points: points,
		}
		l.reopen()
		for range steps {
			l.act()
		}
		l.survived(l.store, "the end")
		l.store.Close()
	}
	for _, p := range []string{
		"file synced", "file named", "file committed", "file deleted", "batch created", "faults synced", "batch accept", "batch reject",
		"answers synced", "answers committed", "batch cancel", "batch expire", "output synced", "batch finish",
	} {
		if points[p] == 0 {
			t.Errorf("nothing was interrupted behind '%s'", p)
		}
	}
}

func (l *life) reopen() {
	if l.store != nil {
		if err := l.store.Close(); err != nil {
			l.t.Fatal(err)
		}
	}
	s, err := Open(l.dir, l.options())
	if err != nil {
		l.t.Fatal(err)
	}
	l.store = s
}

// act does one random thing.
func (l *life) act() {
	active, err := l.store.Active()
	if err != nil {
		l.t.Fatal(err)
	}
	if len(active) == 0 || l.r.IntN(12) == 0 {
		l.create()
		return
	}
	b := active[l.r.IntN(len(active))]
	p := l.batches[b.ID]
	switch what := l.r.IntN(20); {
	case what == 0:
		l.reopen()
	case what == 1:
		if _, err := l.store.Cancel("", b.ID); err != nil && !b.Ending() {
			l.t.Fatal(err)
		}
	case what == 2:
		l.clock.at = l.clock.at.Add(time.Minute)
	case what == 3 && b.Due(l.clock.at):
		if _, err := l.store.Expire(b.ID); err != nil {
			l.t.Fatal(err)
		}
	case what == 4:
		l.delete()
	case b.Status == Validating:
		if _, err := l.store.Validate(l.t.Context(), b.ID); err != nil {
			l.t.Fatal(err)
		}
	case b.Ending() && l.r.IntN(3) == 0:
		ended, err := l.store.Finish(l.t.Context(), b.ID)
		if err != nil {
			l.t.Fatal(err)
		}
		p.ended = &ended
		l.checkOutput(l.store, &ended, p, "finish")
	case b.Counts.Total > 0:
		l.settle(&b, p)
	}
}

// create uploads a file and makes a batch of it; some lines are faulty, some files all.
func (l *life) create() {
	var text strings.Builder
	p := &promise{settled: map[int]string{}, tried: map[int][]string{}}
	faulty := []int{0, 0, 5, 1}[l.r.IntN(4)]
	for i := range l.r.IntN(9) {
		if id := fmt.Sprintf("line-%d", i); faulty == 0 || l.r.IntN(faulty) > 0 {
			text.WriteString(request(id) + "\n")
			p.ids = append(p.ids, id)
		} else {
			text.WriteString("{\n")
			p.ids = append(p.ids, "")
		}
	}
	f := upload(l.t, l.store, "", text.String())
	l.files[f.ID], p.input = text.String(), f.ID
	o := order(f)
	o.Within = time.Duration(1+l.r.IntN(3)) * time.Minute
	b, err := l.store.Create(o)
	if err != nil {
		l.t.Fatal(err)
	}
	l.batches[b.ID] = p
}

// settle answers some lines, also such as are settled already, and some twice.
func (l *life) settle(b *Batch, p *promise) {
	indices, ids := openLines(l.t, l.store, b)
	open := map[int]bool{}
	var group []Settled
	for i, index := range indices {
		open[index] = true
		if l.r.IntN(2) == 0 {
			group = append(group, l.answer(b, p, index, ids[i]))
		}
	}
	group = append(group, l.answer(b, p, l.r.IntN(b.Counts.Total), "again"))
	n, err := l.store.Settle(group)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, s := range group {
		if open[s.Index] && p.settled[s.Index] == "" {
			p.settled[s.Index] = string(s.Text)
			n--
		}
	}
	if n != 0 {
		l.t.Fatalf("%d lines more were settled than were open", n)
	}
}

func (l *life) answer(b *Batch, p *promise, index int, id string) Settled {
	l.serial++
	if id == "again" && p.ids[index] != "" {
		id = p.ids[index]
	}
	s := answer(l.t, b.ID, index, id, fmt.Sprintf("answer %d", l.serial), []int{200, 200, 400}[l.r.IntN(3)])
	p.tried[index] = append(p.tried[index], string(s.Text))
	return s
}

// delete removes a random file; one in use is refused.
func (l *life) delete() {
	list, _, err := l.store.Files("", "", "", 1000, true)
	if err != nil || len(list) == 0 {
		return
	}
	id := list[l.r.IntN(len(list))].ID
	text, there := l.files[id]
	delete(l.files, id)
	l.going = id
	defer func() { l.going = "" }()
	if err := l.store.Delete("", id); err == nil {
		l.deleted[id] = true
	} else if there {
		l.files[id] = text
	}
}
