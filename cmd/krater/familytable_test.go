package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"krater/kernels/cuda"
	"krater/stages"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights/gguf"
	"krater/stages/weights/gguf/folder"
)

// familyRow is a row of the table of families in docs/weights.md.
type familyRow struct {
	types, checkpoints, ggufs []string
	gpu                       bool
}

func familyRows(t *testing.T) (rows []familyRow) {
	t.Helper()
	data, err := os.ReadFile("../../docs/weights.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(data), "| `model_type` | releases |")
	words := regexp.MustCompile(`[\w-]+`)
	for _, line := range strings.Split(text, "\n")[2:] {
		cells := strings.Split(line, "|")
		if len(cells) != 8 {
			break
		}
		if gpu := strings.TrimSpace(cells[5]); gpu != "yes" && gpu != "no" {
			t.Errorf("GPU is %q: want yes or no", gpu)
		}
		rows = append(rows, familyRow{words.FindAllString(cells[1], -1), words.FindAllString(cells[3], -1), words.FindAllString(cells[4], -1), strings.TrimSpace(cells[5]) == "yes"})
	}
	return rows
}

// TestFamilyTable: docs/weights.md lists the families that run, the formats of their golden models, the names of their GGUF files, and
// whether a GPU has kernels for them.
func TestFamilyTable(t *testing.T) {
	byType, ggufs := map[string]familyRow{}, map[string]bool{}
	for _, r := range familyRows(t) {
		for _, name := range r.types {
			byType[name] = r
		}
		for _, name := range r.ggufs {
			ggufs[name] = true
		}
	}
	if got, want := slices.Sorted(maps.Keys(byType)), model.Families(); !slices.Equal(got, want) {
		t.Errorf("the table has %q, families are %q", got, want)
	}
	var none bytes.Buffer
	if err := gguf.Write(&none, []gguf.Pair{{Key: "general.architecture", Value: "none"}}, nil); err != nil {
		t.Fatal(err)
	}
	file, err := gguf.Parse(none.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	_, err = folder.New(file) // names all that are known
	_, known, _ := strings.Cut(err.Error(), "(known: ")
	if got, want := slices.Sorted(maps.Keys(ggufs)), strings.Split(strings.TrimSuffix(known, ")"), ", "); !slices.Equal(got, want) {
		t.Errorf("the table has GGUF files of %q, known are %q", got, want)
	}
	configs, _ := filepath.Glob("../../testdata/goldens/*/config.json")
	if len(configs) < 20 {
		t.Fatalf("%d golden models", len(configs))
	}
	for _, path := range configs {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := model.Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		row, name := byType[cfg.Family], filepath.Base(filepath.Dir(path))
		refused := cuda.Layout{}.Check(load.StepSizes(cfg, stages.Limits{Tokens: 8, Seqs: 1, LogitRows: 1, Blocks: 1, BlockTokens: 8, Context: 8}))
		if row.gpu != (refused == nil) {
			t.Errorf("%s: the column GPU says %v for %s; the GPU says %v", name, row.gpu, cfg.Family, refused)
		}
		formats := []string{"BF16"}
		if q := cfg.Quantization; q != nil {
			formats = nil
			for _, s := range q.Schemes {
				formats = append(formats, s.Codes.String())
			}
		}
		for _, f := range formats {
			if !slices.Contains(row.checkpoints, f) {
				t.Errorf("%s: the checkpoints of %s lack %s: %q", name, cfg.Family, f, row.checkpoints)
			}
		}
	}
}
