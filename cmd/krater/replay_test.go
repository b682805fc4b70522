package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/cmd/krater/choices"
	"krater/scheduler/routing"
)

// recorded reads a trace: its batches, and how often each expert was chosen, [layer][expert].
func recorded(t *testing.T, path string) (list []routing.Batch, counts [][]uint64) {
	t.Helper()
	row, topK := 0, 0
	err := routing.Each(path, func(h routing.Header) error {
		row, topK = len(h.Layers)*h.TopK, h.TopK
		for range h.Layers {
			counts = append(counts, make([]uint64, h.Experts))
		}
		return nil
	}, func(b *routing.Batch) error {
		list = append(list, routing.Batch{Decode: b.Decode, Rows: b.Rows, IDs: slices.Clone(b.IDs)})
		for i, e := range b.IDs {
			counts[i%row/topK][e]++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list, counts
}

// TestRecordAndReplay: a heat map counts the choices that are recorded, whatever actors compute the layers, and they
// can be replayed.
func TestRecordAndReplay(t *testing.T) {
	var first []byte
	path := filepath.Join(t.TempDir(), "trace")
	for _, flags := range [][]string{nil, {"--layer-groups", "3", "--expert-pools", "2", "--inline-below=-1ns"}, {"--prefill-chunk", "64"}} {
		args := append([]string{"heatmap", "--json", "--kv-dtype", "f32", "--tokens", "300", "--window", "90", "--record", path}, flags...)
		m := decode[heatJSON](t, answers(t, "", args...))
		list, counts := recorded(t, path)
		rows := 0
		for _, b := range list {
			if b.Decode {
				t.Errorf("%v: a batch of generated rows", flags)
			}
			rows += b.Rows
		}
		for i, l := range m.Layers {
			if rows != 300 || !slices.Equal(counts[i], l.Counts) {
				t.Errorf("%v, layer %d: %d rows, %v recorded, %v counted", flags, l.Layer, rows, counts[i], l.Counts)
			}
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = data
		}
		if len(flags) != 2 && !bytes.Equal(data, first) { // with 2 the batches are others
			t.Errorf("%v: another file", flags)
		}
	}
	text := answers(t, "", "heatmap", "--replay", path, "--slots", "0.25,1", "--moves", "200")
	for _, want := range []string{"300 tokens, 6 layers of 32 experts, 4 per token", "48 slots", "192 slots", "static", "lru", "lfu", "learned", "oracle"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	r := decode[choices.Report](t, answers(t, "", "heatmap", "--replay", path, "--json"))
	best := map[int]float64{}
	for _, x := range r.Results {
		if x.Policy == "oracle" {
			best[x.Slots] = x.Share()
		}
	}
	for _, x := range r.Results {
		if x.Batches != 300 || x.Reads != 300*24 || x.Policy == "learned" && x.Share() < 0.8*best[x.Slots] {
			t.Errorf("%+v, the oracle's share of hits is %.3f", x, best[x.Slots])
		}
	}
	refuses(t, 1, []string{"heatmap", "--replay", path, "--slots", "1.5"}, "--slots 1.5")
	refuses(t, 1, []string{"heatmap", "--replay", modelDir + "/config.json"}, "no recording of router choices")
	refuses(t, 1, []string{"heatmap", "--record", modelDir + "/config.json", "--tokens", "9"}, "no recording of router choices")
}

// TestServeRecords: a server records the choices for every row of prompts and answers, until the file has its size.
func TestServeRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	s := open(t, "--record-routing", path)
	for i := range 3 {
		s.reply(t, routes[2], greedy(fmt.Sprintf("A lighthouse is %d", i), 6).with("ignore_eos", true))
	}
	rows := s.rows(3)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	list, _ := recorded(t, path)
	prompts, generated := 0, 0
	for _, b := range list {
		if b.Decode {
			generated += b.Rows
		} else {
			prompts += b.Rows
		}
	}
	if generated != 3*5 || uint64(prompts+generated) != rows {
		t.Errorf("%d rows of prompts and %d of answers, want %d with 15 of answers", prompts, generated, rows)
	}
	s = open(t, "--record-routing", path, "--record-limit", "400B")
	s.reply(t, routes[2], greedy("A river is", 40).with("ignore_eos", true))
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() < 400 || info.Size() > 1000 {
		t.Errorf("%v: a file of %d bytes", err, info.Size())
	}
}
