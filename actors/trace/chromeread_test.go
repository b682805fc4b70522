package trace

import (
	"bytes"
	"cmp"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestChromeRoundTrip: what is written comes back, but for what the format has no place for.
func TestChromeRoundTrip(t *testing.T) {
	var buf bytes.Buffer
	devices := []string{"host", "cuda:0"}
	if err := WriteChrome(&buf, step(), devices); err != nil {
		t.Fatal(err)
	}
	got, names, err := ReadChrome(&buf)
	if err != nil {
		t.Fatal(err)
	}
	want := step()
	for i := range want {
		slices.SortStableFunc(want[i].Events, func(a, b Event) int { return cmp.Compare(a.Ended, b.Ended) })
		for j := range want[i].Events {
			e := &want[i].Events[j]
			if e.Kind == Request { // a request is no batch's
				e.Batch = 0
			}
			if e.Kind == Prefill { // when it came is the request's
				e.Enqueued = 0
			}
		}
	}
	if !reflect.DeepEqual(got, want) || !slices.Equal(names, devices) {
		t.Errorf("got  %+v\nwant %+v\ndevices %v", got, want, names)
	}
}

func TestReadChromeRefuses(t *testing.T) {
	thread := `{"ph":"M","name":"thread_name","tid":1,"args":{"name":"a"}},`
	for text, words := range map[string]string{
		"":                    "EOF",
		"[]":                  "where { is to be",
		`{"traceEvents":{}}`:  "where [ is to be",
		`{"traceEvents":[{]}`: "invalid",
		`{"traceEvents":[`:    "unexpected",
		`{"traceEvents":[{"ph":"X","name":"group","tid":7}]}`:                                      "thread 7",
		`{"traceEvents":[` + thread + `{"ph":"X","name":"dance","tid":1}]}`:                        "dance",
		`{"traceEvents":[` + thread + `{"ph":"X","name":"group","tid":1,"ts":1e300}]}`:             "1e+300",
		`{"traceEvents":[` + thread + `{"ph":"X","name":"group","tid":1,"args":{"layer":99999}}]}`: "layer",
		`{"traceEvents":[` + strings.Repeat(thread, tracksMax+1) + `{}]}`:                          "too many actors",
	} {
		if _, _, err := ReadChrome(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%.60q: %v, want %q", text, err, words)
		}
	}
}

// FuzzReadChrome: foreign bytes give events or an error, and what is read can be looked at.
func FuzzReadChrome(f *testing.F) {
	var buf bytes.Buffer
	if err := WriteChrome(&buf, step(), nil); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Bytes())
	f.Add([]byte(`{"traceEvents":[{"ph":"M","name":"thread_name","tid":1,"args":{"name":"a"}},{"ph":"e","name":"request","tid":1,"id":3,"ts":5}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tracks, devices, err := ReadChrome(bytes.NewReader(data))
		if err != nil {
			return
		}
		Gaps(tracks, 1)
		for _, x := range tracks {
			for i := range x.Events {
				if int(x.Events[i].Device) >= len(devices) {
					t.Fatalf("device %d of %d", x.Events[i].Device, len(devices))
				}
				Path(tracks, x.Events[i].Batch)
			}
		}
	})
}
