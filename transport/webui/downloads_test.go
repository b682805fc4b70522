package webui

import (
	"bufio"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"krater/transport/server"
)

func TestExport(t *testing.T) {
	s := serve(t, Options{}, server.Options{})
	at := int64(1)
	for range 5 {
		at = s.fake.step(at, 10e6, 2)
	}
	for path, want := range map[string]int{"/trace/export": 5, "/trace/export?steps=2": 2, "/trace/export?steps=all": 5, "/trace/export?request=2": 5, "/trace/export?request=77": 0} {
		res, body := s.get(path)
		var file struct {
			TraceEvents []struct {
				Ph   string
				Args struct{ Batch int }
			}
		}
		if err := json.Unmarshal([]byte(body), &file); err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", path, res.Status, err)
		}
		batches := map[int]bool{}
		for _, e := range file.TraceEvents {
			if e.Ph == "X" {
				batches[e.Args.Batch] = true
			}
		}
		if len(batches) != want {
			t.Errorf("%s has batches %v", path, batches)
		}
	}
	for _, path := range []string{"/trace/export?steps=0", "/trace/export?steps=x", "/trace/export?request=-1", "/trace/record", "/trace/record?seconds=0", "/trace/record?seconds=1e9", "/trace/record?seconds=NaN"} {
		if res, _ := s.get(path); res.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
}

// TestForeignPageRecords: another site's page cannot have the trace recorded; the server's own, a
// program and an allowed site can.
func TestForeignPageRecords(t *testing.T) {
	const friend = "http://friend.example"
	s := serve(t, Options{}, server.Options{Origins: []string{friend}})
	for _, c := range []struct {
		site, origin string
		want         int
	}{
		{"", "", http.StatusOK},
		{"none", "", http.StatusOK},
		{"same-origin", "", http.StatusOK},
		{"cross-site", friend, http.StatusOK},
		{"cross-site", "", http.StatusForbidden},
		{"same-site", "", http.StatusForbidden},
		{"cross-site", "http://elsewhere.example", http.StatusForbidden},
	} {
		header := []string{}
		if c.site != "" {
			header = append(header, "Sec-Fetch-Site", c.site)
		}
		if c.origin != "" {
			header = append(header, "Origin", c.origin)
		}
		if res, _ := s.get("/trace/record?seconds=0.01", header...); res.StatusCode != c.want {
			t.Errorf("%+v: %s", c, res.Status)
		}
	}
}

// TestRecordingsAreBounded: each reads all rings all the time, so there are only a few, and one
// that ends makes room.
func TestRecordingsAreBounded(t *testing.T) {
	s := serve(t, Options{Recordings: 2}, server.Options{})
	var open []*http.Response
	for range 2 {
		res, err := http.Get(s.http.URL + "/trace/record?seconds=60")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		open = append(open, res)
	}
	if res, body := s.get("/trace/record?seconds=0.01"); res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
		t.Errorf("a third: %s %s", res.Status, body)
	}
	open[0].Body.Close()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if res, _ := s.get("/trace/record?seconds=0.01"); res.StatusCode == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("a recording that ended keeps its place")
		}
	}
}

// TestRecord: what happens while it records comes out, what was before does not.
func TestRecord(t *testing.T) {
	s := serve(t, Options{}, server.Options{})
	at := s.fake.step(1, 10e6, 2)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				at = s.fake.step(at, 10e6, 2)
			}
		}
	}()
	res, body := s.get("/trace/record?seconds=0.4")
	close(stop)
	<-done
	if res.StatusCode != http.StatusOK {
		t.Fatal(res.Status)
	}
	groups := 0
	last := 0.0
	devices, body, _ := strings.Cut(body, "\n")
	if devices != `["host","cuda:0"]` {
		t.Errorf("devices %s", devices)
	}
	for in := bufio.NewScanner(strings.NewReader(body)); in.Scan(); {
		var line []any
		if err := json.Unmarshal(in.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		for _, e := range line[1:] {
			if batch := e.([]any)[2].(float64); line[0] == "head" {
				if batch == 1 || last != 0 && batch != last+1 {
					t.Fatalf("batch %v behind %v", batch, last)
				}
				last = batch
				groups++
			}
		}
	}
	if groups < 3 {
		t.Errorf("%d steps recorded", groups)
	}
}
