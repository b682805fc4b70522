package cache

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights"
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
func status(field string) int {
	b, err := os.ReadFile("/proc/self/status")
	_, rest, _ := strings.Cut(string(b), field+":")
	var kib int
	if _, err2 := fmt.Sscan(rest, &kib); err != nil || err2 != nil {
		panic(fmt.Sprint(err, err2))
	}
	return kib << 10
}

// peakModel has 8 layers of 25 MB.
func peakModel() *model.Config {
	return mixtures(8, 1024, 8, 512)
}

func init() { peakChild = convertAndTell }

// convertAndTell converts the model of a folder to both formats and tells by how
// much the process grew at its largest.
func convertAndTell(dir string) {
	err := func() error {
		cfg := peakModel()
		set, err := weights.Open(dir)
		if err != nil {
			return err
		}
		defer set.Close()
		format := tensor.INT4.By(64)
		plan, err := NewPlan(cfg, format, Absmax, Fingerprint{})
		if err != nil {
			return err
		}
		a := forGPU(plan)
		a.Format = tensor.INT8.By(64)
		o := Options{Plan: plan, Also: []Plan{a}, Dir: filepath.Join(dir, "cache"), Source: &Weights{Config: cfg, Set: set, Format: format, Method: Absmax}}
		before := status("VmRSS")
		if _, err := Build(context.Background(), o); err != nil {
			return err
		}
		_, err = fmt.Println("grown", status("VmHWM")-before)
		return err
	}()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// TestPeakMemory converts 200 MB to both formats in a process of its own, which
// grows by less than two layers (what is read of the source included).
func TestPeakMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("200 MB of files: not in the short suite")
	}
	dir, begin := wide(t, peakModel()), time.Now()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childPeak+"="+dir, "GOGC=100")
	out, err := cmd.CombinedOutput()
	var grown int
	if _, err2 := fmt.Sscanf(string(out), "grown %d", &grown); err != nil || err2 != nil {
		t.Fatalf("%v, %v: %s", err, err2, out)
	}
	layer := 8 * 3 * 1024 * 512 * 2
	t.Logf("200 MB of source in %v, peak memory %.2f layers", time.Since(begin).Round(time.Millisecond), float64(grown)/float64(layer))
	if grown > 2*layer {
		t.Errorf("grown by %d bytes, a layer has %d", grown, layer)
	}
}
