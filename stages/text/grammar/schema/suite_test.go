package schema

import (
	"encoding/json"
	"encoding/json/jsontext"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestSuite compares with the JSON Schema Test Suite, where KRATER_SCHEMA_SUITE names a folder of it: a
// schema that is read must not take a text that the suite calls wrong.
func TestSuite(t *testing.T) {
	dir := os.Getenv("KRATER_SCHEMA_SUITE")
	if dir == "" {
		t.Skip("KRATER_SCHEMA_SUITE is not set")
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	if len(files) == 0 {
		t.Fatal("there are no files in ", dir)
	}
	var refused, read, wrong, missed, right int
	var slowest time.Duration
	reasons := map[string]int{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var groups []struct {
			Description string
			Schema      jsontext.Value
			Tests       []struct {
				Description string
				Data        jsontext.Value
				Valid       bool
			}
		}
		if err := json.Unmarshal(data, &groups); err != nil {
			t.Fatal(err)
		}
		for _, g := range groups {
			began := time.Now()
			gr, err := compileSchema(string(g.Schema), Options{})
			slowest = max(slowest, time.Since(began))
			if err != nil {
				refused++
				if e, ok := err.(*Error); ok {
					reasons[e.Reason]++
				}
				continue
			}
			read++
			for _, one := range g.Tests {
				v := one.Data.Clone()
				_ = v.Compact()
				switch got := fits(gr, string(v)); {
				case got && !one.Valid:
					wrong++
					t.Errorf("%s: %s, %s: %s takes %s", filepath.Base(f), g.Description, one.Description, g.Schema, v)
				case !got && one.Valid:
					missed++
					fmt.Printf("missed %s: %s, %s: %s %s\n", filepath.Base(f), g.Description, one.Description, g.Schema, v)
				default:
					right++
				}
			}
		}
	}
	t.Logf("%d schemas read (%v the longest), %d refused; %d texts right, %d wrongly taken, %d valid ones not taken", read, slowest, refused, right, wrong, missed)
	t.Log(reasons)
}
