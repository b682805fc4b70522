package cache

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/quant"
)

// wide writes a model of BF16 experts of two alternating values.
func wide(t testing.TB, cfg *model.Config) string {
	t.Helper()
	var head strings.Builder
	size := cfg.Hidden * cfg.MoE.FF * 2
	at := 0
	tensor := func(name string, rows, cols int) {
		fmt.Fprintf(&head, `%s"%s":{"dtype":"BF16","shape":[%d,%d],"data_offsets":[%d,%d]}`, map[bool]string{true: "{", false: ","}[at == 0], name, rows, cols, at, at+size)
		at += size
	}
	for layer := range cfg.Layers {
		for e := range cfg.MoE.Experts {
			n := cfg.ExpertNames(layer, e)
			tensor(n.Gate, cfg.MoE.FF, cfg.Hidden)
			tensor(n.Up, cfg.MoE.FF, cfg.Hidden)
			tensor(n.Down, cfg.Hidden, cfg.MoE.FF)
		}
	}
	head.WriteString("}" + strings.Repeat(" ", 7-head.Len()%8)) // the data starts at a multiple of 8
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Write(binary.LittleEndian.AppendUint64(nil, uint64(head.Len())))
	f.WriteString(head.String())
	b := make([]byte, size)
	for i := 0; i < size; i += 2 {
		b[i], b[i+1] = byte(i*37>>3), 0x3c
	}
	for ; at > 0; at -= size {
		if _, err := f.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// status is a field of /proc/self/status in bytes.
func status(t testing.TB, field string) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), field+":")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// TestPeakMemory converts 8 layers of 25 MB: the process grows by less than two of
// them (what is read of the source included).
func TestPeakMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("200 MB of files: not in the short suite")
	}
	cfg := &model.Config{Layers: 8, Hidden: 1024, MoE: model.MoE{Experts: 8, FF: 512}}
	set, err := weights.Open(wide(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	spec := quant.Spec{Bits: 4, Group: 64}
	plan, err := NewPlan(cfg, spec, Absmax, Fingerprint{})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Plan: plan, Dir: t.TempDir(), Source: &Weights{Config: cfg, Set: set, Spec: spec, Method: Absmax}}
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil { // VmHWM starts again
		t.Skipf("the peak cannot be measured here: %v", err)
	}
	before, start := status(t, "VmRSS"), time.Now()
	if _, err := Build(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	layer := 8 * 3 * 1024 * 512 * 2
	grown := status(t, "VmHWM") - before
	t.Logf("%d MB of source in %v, peak memory %.2f layers", int(set.Bytes())>>20, time.Since(start).Round(time.Millisecond), float64(grown)/float64(layer))
	if grown > 2*layer {
		t.Errorf("grown by %d bytes, a layer has %d", grown, layer)
	}
}
