package rates

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestCurve(t *testing.T) {
	c := Curve{Peak: 510, Half: 43}
	for m, want := range map[float64]float64{-1: 0, 0: 0, 43: 255e12, 48: 269e12, 192: 417e12, 768: 483e12} {
		if got := c.At(m); math.Abs(got-want) > 0.01*want {
			t.Errorf("%g rows: %.3g, want %.3g", m, got, want)
		}
	}
}

// TestCards: every GPU is complete, physically sensible, and says where its figures
// are from.
func TestCards(t *testing.T) {
	for _, name := range Cards() {
		c, ok := Named(strings.ToUpper(name))
		if !ok {
			t.Fatalf("%s is not complete", name)
		}
		if err := (&Rates{Card: c}).Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.ReadGBps >= c.MemoryGBps || c.CopyGBps >= c.LinkGBps || c.BusyGBps > c.CopyGBps || c.Dense.Peak >= c.TFLOPS || c.Experts.Peak >= c.TFLOPS {
			t.Errorf("%s reaches more than its maker says: %+v", name, c)
		}
		for _, f := range c.figures() {
			if strings.HasSuffix(f.name, ".half_rows") {
				continue // of their peaks
			}
			if c.Sources[f.name] == "" {
				t.Errorf("%s: %s is from nowhere", name, f.name)
			}
		}
		for _, f := range []string{"memory_gib", "memory_gbps", "tflops", "link_gbps"} {
			if c.Sources[f] != Maker {
				t.Errorf("%s: %s is %s", name, f, c.Sources[f])
			}
		}
	}
	if c, _ := Named("h100"); c.Sources["copy_gbps"] != Measured || c.Sources["experts.peak"] != Measured || c.ReadGBps != 3083 {
		t.Errorf("h100: %+v", c)
	}
	if c, _ := Named("rtx-4090"); c.Sources["copy_gbps"] != Assumed || math.Abs(c.CopyGBps-26.1) > 0.1 {
		t.Errorf("rtx-4090: %+v", c)
	}
	if _, ok := Named("rtx-1"); ok {
		t.Error("a GPU that nobody makes is known")
	}
}

func TestKnown(t *testing.T) {
	for name, want := range map[string]string{
		"NVIDIA H100 80GB HBM3":           "NVIDIA H100 80GB HBM3",
		"NVIDIA H200":                     "NVIDIA H200",
		"NVIDIA GeForce RTX 3090":         "NVIDIA GeForce RTX 3090",
		"NVIDIA GeForce RTX 4090":         "NVIDIA GeForce RTX 4090",
		"NVIDIA GeForce RTX 4090 D":       "NVIDIA GeForce RTX 4090",
		"NVIDIA RTX 2000 Ada Generation":  "NVIDIA RTX 2000 Ada",
		"NVIDIA A100-SXM4-80GB":           "NVIDIA A100 80GB",
		"NVIDIA L4":                       "NVIDIA L4",
		"NVIDIA L40S":                     "NVIDIA L40S",
		"NVIDIA L40":                      "",
		"NVIDIA A100-SXM4-40GB":           "",
		"NVIDIA H100 PCIe":                "",
		"NVIDIA GeForce RTX 40900":        "",
		"10de:2330":                       "",
		"":                                "",
		"NVIDIA GeForce RTX 3090 Ti":      "NVIDIA GeForce RTX 3090",
		"NVIDIA GeForce RTX 5090 Max":     "NVIDIA GeForce RTX 5090",
		"NVIDIA RTX 2000 Adagio":          "",
		"NVIDIA GeForce RTX 5090 Ti HBM3": "NVIDIA GeForce RTX 5090",
	} {
		if c, ok := Known(name); c.Name != want || ok != (want != "") {
			t.Errorf("%q is taken for %q", name, c.Name)
		}
	}
}

func TestComplete(t *testing.T) {
	c, err := Card{Name: "mine", MemoryGiB: 8, ReadGBps: 92, Dense: Curve{79, 0}, CopyGBps: 10}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(c.MemoryGBps-100) > 1e-9 || math.Abs(c.TFLOPS-100) > 1e-9 || c.Dense != (Curve{79, 0}) || math.Abs(c.Experts.Peak-52) > 1e-9 || c.BusyGBps != 8.7 || c.LinkGBps < 12 {
		t.Errorf("%+v", c)
	}
	if c.Sources["read_gbps"] != "" || c.Sources["memory_gbps"] != Assumed {
		t.Errorf("%+v", c.Sources)
	}
	again, err := c.Complete()
	if err != nil || !reflect.DeepEqual(again, c) {
		t.Errorf("completing twice changes it: %+v, %v", again, err)
	}
	for want, bad := range map[string]Card{
		"memory_gib":              {MemoryGBps: 1, TFLOPS: 1, LinkGBps: 1},
		"memory_gbps or read":     {MemoryGiB: 1, TFLOPS: 1, LinkGBps: 1},
		"tflops or dense":         {MemoryGiB: 1, MemoryGBps: 1, LinkGBps: 1},
		"link_gbps or copy":       {MemoryGiB: 1, MemoryGBps: 1, TFLOPS: 1},
		"busy_copy_gbps 2 is mor": {MemoryGiB: 1, MemoryGBps: 1, TFLOPS: 1, CopyGBps: 1, BusyGBps: 2},
	} {
		if _, err := bad.Complete(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for _, bad := range []CPU{{ReadGBps: 1}, {Experts: Curve{1, 1}}} {
		if _, err := bad.Complete(); !errors.Is(err, ErrIncomplete) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestAssumedCPU(t *testing.T) {
	c := AssumedCPU("x", 16, 1, Matrix)
	if c.ReadGBps != 100 || c.Experts != (Curve{4.96, 12}) || c.Sources["read_gbps"] != Assumed {
		t.Errorf("%+v", c)
	}
	last := 0.0
	if a, b := AssumedCPU("x", 16, 1, 9), c; a.Experts != b.Experts {
		t.Errorf("a later level: %+v", a)
	}
	for _, l := range []Level{Plain, AVX2, VNNI} {
		c := AssumedCPU("x", 0, 0, l)
		if c.Threads != 1 || c.ReadGBps != 8 || c.Experts.Peak < last {
			t.Errorf("level %d: %+v", l, c)
		}
		last = c.Experts.Peak
	}
}

// files are descriptions in testdata with what is wrong with them, "" if nothing is.
var files = map[string]string{
	`{"krater_rates":1}`: "",
	`{"krater_rates":1,"card":{"name":"RTX 9090","memory_gib":48,"memory_gbps":2000,"tflops":400,"link_gbps":63}}`:      "",
	`{"krater_rates":1,"cpu":{"read_gbps":40,"experts":{"peak":0.8,"half_rows":4},"sources":{"read_gbps":"measured"}}}`: "",
	``:                                      "unexpected end",
	`[]`:                                    "cannot unmarshal",
	`{}`:                                    "version 0, want 1",
	`{"krater_rates":2}`:                    "version 2, want 1",
	`{"krater_rates":2,"new":1}`:            "version 2, want 1",
	`{"krater_rates":1} {}`:                 "after top-level value",
	`{"krater_rates":1,"new":1}`:            "unknown field",
	`{"krater_rates":1,"card":{"speed":1}}`: "unknown field",
	`{"krater_rates":1,"card":{"memory_gib":-1}}`:                          "card: memory_gib: -1, want",
	`{"krater_rates":1,"card":{"memory_gib":1e7}}`:                         "card: memory_gib: 1e+07, want",
	`{"krater_rates":1,"card":{"memory_gib":1e999}}`:                       "cannot unmarshal",
	`{"krater_rates":1,"card":{"weight_share":1.5}}`:                       "weight_share",
	`{"krater_rates":1,"card":{"experts":{"peak":-1}}}`:                    "experts.peak",
	`{"krater_rates":1,"card":{"sources":{"a":"maker"}}}`:                  "there is no figure",
	`{"krater_rates":1,"card":{"sources":{"tflops":"rumour"}}}`:            "want maker, measured or assumed",
	`{"krater_rates":1,"card":{"name":"a\u001b[2J"}}`:                      "control characters",
	`{"krater_rates":1,"cpu":{"threads":-1}}`:                              "threads",
	`{"krater_rates":1,"machine":"` + strings.Repeat("a", 300) + `"}`:      "300 bytes",
	`{"krater_rates":1,"machine":"` + strings.Repeat("a", FileMost) + `"}`: "want at most 65536",
}

func TestParse(t *testing.T) {
	for text, want := range files {
		f, err := Parse([]byte(text))
		if want == "" {
			if err != nil || f.Version != Version {
				t.Errorf("%.80s: %v", text, err)
			}
			continue
		}
		if !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, want %s", text, err, want)
		}
	}
}

// TestFile: reading a written file returns the same figures, to the digit. A change of the format
// makes the test fail.
func TestFile(t *testing.T) {
	c, _ := Named("h100")
	cpu := AssumedCPU("Xeon", 16, 1, Matrix)
	data, err := File{Machine: "0123", Card: &c, CPU: &cpu}.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	f, err := Parse(data)
	if err != nil || !reflect.DeepEqual(*f.Card, c) || !reflect.DeepEqual(*f.CPU, cpu) || f.Machine != "0123" {
		t.Fatalf("%+v, %v", f, err)
	}
	golden := filepath.Join("testdata", "h100.json")
	if want, err := os.ReadFile(golden); err != nil || !bytes.Equal(want, data) {
		t.Errorf("%s differs (%v); if that is meant, the new file is\n%s", golden, err, data)
	}
	c.CopyGBps = math.NaN()
	if _, err := (File{Card: &c}).Bytes(); err == nil {
		t.Error("a rate that is no number is written")
	}
}

// FuzzParse: no bytes make the reader panic, and what it takes can be written and
// read again as the same.
func FuzzParse(f *testing.F) {
	for text := range files {
		f.Add([]byte(text))
	}
	c, _ := Named("rtx-3090")
	data, _ := File{Card: &c}.Bytes()
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse(data)
		if err != nil {
			return
		}
		again, err := file.Bytes()
		if err != nil {
			t.Fatalf("it cannot be written: %v", err)
		}
		second, err := Parse(again)
		if err != nil {
			t.Fatalf("%v\n%s", err, again)
		}
		third, err := second.Bytes()
		if err != nil || !bytes.Equal(again, third) {
			t.Fatalf("%v: it changes:\n%s\n%s", err, again, third)
		}
		if file.Card != nil {
			if c, err := file.Card.Complete(); err == nil && (&Rates{Card: c}).Check() == nil {
				for _, f := range c.figures() {
					if math.IsNaN(*f.at) || math.IsInf(*f.at, 0) {
						t.Fatalf("%s is %g", f.name, *f.at)
					}
				}
			}
		}
	})
}
