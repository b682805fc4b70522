package cards

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"

	"krater/bench/stat"
)

// Report is the result of a run on a GPU.
type Report struct {
	Commit   string   `json:"commit"`
	GPU      string   `json:"card"`
	Portable bool     `json:"portable,omitempty"` // measured with the kernels for GPUs of all generations
	Ceilings Ceilings `json:"ceilings"`
	Trips    []Trip   `json:"trips,omitempty"`
	Rows     []Row    `json:"rows"`
}

// Ceilings are the GPU's limits, measured in the same run.
type Ceilings struct {
	ReadGBps float64 `json:"read_gbps"`
	CopyGBps float64 `json:"copy_gbps"` // bytes read and bytes written
	Far      []Far   `json:"far,omitempty"`
	TFLOPs   float64 `json:"tflops"` // BF16 matrix instructions without memory accesses
	// The rate of a product of 8192 x 8192 x 8192 by cuBLASLt; 0 without the library.
	LibraryTFLOPs float64 `json:"cublaslt_tflops,omitempty"`
}

// Far is the rate of reads over that much memory.
type Far struct {
	GiB  int     `json:"gib"`
	GBps float64 `json:"gbps"`
}

// Row is the result of a case.
type Row struct {
	Op      string   `json:"op"`
	Shape   string   `json:"shape"`
	DType   string   `json:"dtype"`
	Kernels []string `json:"kernels"`
	Source  string   `json:"source"`          // hash of the kernels' sources
	US      float64  `json:"us"`              // of one run of the case
	GBps    float64  `json:"gbps"`            // rate of the bytes that have to move
	TFLOPs  float64  `json:"tflops"`          // rate of the operations that have to be done
	Share   float64  `json:"share"`           // of the rate that the ceilings allow
	Bound   string   `json:"bound"`           // "memory" or "compute": the ceiling that limits the case
	Error   float64  `json:"error"`           // the worst sample's error, relative to its terms
	Pass    bool     `json:"pass"`            // all samples were within the tolerance
	Fault   string   `json:"fault,omitempty"` // why a sample failed
	// The time of each kernel by itself, repeated, if requested.
	Launches []Launch `json:"launches,omitempty"`
	// cuBLASLt's time for the same product, if the library exists and has one.
	LibraryUS float64 `json:"cublaslt_us,omitempty"`
}

// Launch is the time of one of a case's kernels.
type Launch struct {
	Kernel string  `json:"kernel"`
	US     float64 `json:"us"`
}

func (r *Row) name() string { return (&Case{Op: r.Op, Shape: r.Shape, DType: r.DType}).Name() }

// judge compares samples with the case's tolerance.
func (c *Case) judge(samples []Sample) (worst float64, fault string) {
	if len(samples) == 0 {
		return 0, "nothing was compared"
	}
	for i, s := range samples {
		off := math.Abs(s.Got - s.Want)
		allowed := c.Rel*math.Abs(s.Want) + c.Abs*s.Scale
		if !(off <= allowed) && fault == "" { // NaN too
			fault = fmt.Sprintf("sample %d of %d: %.6g, want %.6g (within %.2g)", i, len(samples), s.Got, s.Want, allowed)
		}
		if e := off / max(math.Abs(s.Want), s.Scale); off > 0 && e > worst {
			worst = e
		}
	}
	return worst, fault
}

// rate computes the rates from the time of a launch in microseconds.
func (r *Row) rate(c *Case, us float64, top Ceilings) {
	r.US = stat.Round(us, 4)
	r.GBps = stat.Round(c.Bytes/us/1e3, 4)
	r.TFLOPs = stat.Round(c.Flops/us/1e6, 4)
	memory, compute := c.Bytes/top.ReadGBps/1e3, c.Flops/top.TFLOPs/1e6
	r.Bound = "memory"
	if compute > memory {
		r.Bound = "compute"
	}
	r.Share = stat.Round(max(memory, compute)/us, 3)
}

// Faults returns the rows and trips that did not pass.
func (r *Report) Faults() (out []string) {
	for i := range r.Trips {
		if t := &r.Trips[i]; t.Fault != "" {
			out = append(out, t.Name()+": "+t.Fault)
		}
	}
	for i := range r.Rows {
		if row := &r.Rows[i]; !row.Pass {
			out = append(out, row.name()+": "+row.Fault)
		}
	}
	return out
}

// JSON writes the report with one line per row, so that versions of it are easy to compare.
func (r *Report) JSON(w io.Writer) error {
	ceilings, err := json.Marshal(r.Ceilings)
	if err != nil {
		return err
	}
	trips, err := json.Marshal(r.Trips)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	portable := ""
	if r.Portable {
		portable = `"portable": true, `
	}
	fmt.Fprintf(&b, "{\"commit\": %q, \"card\": %q, %s\"ceilings\": %s,\n\"trips\": %s,\n\"rows\": [", r.Commit, r.GPU, portable, ceilings, trips)
	for i := range r.Rows {
		row, err := json.Marshal(&r.Rows[i])
		if err != nil {
			return err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		b.Write(row)
	}
	b.WriteString("\n]}\n")
	_, err = w.Write(b.Bytes())
	return err
}

// Text prints the table.
func (r *Report) Text(w io.Writer) error {
	if err := tripsText(w, r.Trips); err != nil {
		return err
	}
	for _, f := range r.Ceilings.Far {
		if _, err := fmt.Fprintf(w, "%d GiB in one go: reads %.0f GB/s\n", f.GiB, f.GBps); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(w, "%s: reads %.0f GB/s, copies %.0f GB/s, %.0f TFLOP/s (cuBLASLt %.0f)\n\n%-14s%-60s%-28s%10s%9s%9s%8s  %-8s%9s\n",
		r.GPU, r.Ceilings.ReadGBps, r.Ceilings.CopyGBps, r.Ceilings.TFLOPs, r.Ceilings.LibraryTFLOPs,
		"operator", "shape", "type", "us", "GB/s", "TFLOP/s", "share", "bound", "error"); err != nil {
		return err
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		verdict := ""
		if row.LibraryUS > 0 {
			verdict = fmt.Sprintf("  cuBLASLt %.2f us", row.LibraryUS)
		}
		if !row.Pass {
			verdict += "  WRONG: " + row.Fault
		}
		if _, err := fmt.Fprintf(w, "%-14s%-60s%-28s%10.2f%9.0f%9.1f%7.0f%%  %-8s%9.1e%s\n",
			row.Op, row.Shape, row.DType, row.US, row.GBps, row.TFLOPs, 100*row.Share, row.Bound, row.Error, verdict); err != nil {
			return err
		}
		for _, l := range row.Launches {
			if _, err := fmt.Fprintf(w, "%14s%-88s%10.2f\n", "", l.Kernel, l.US); err != nil {
				return err
			}
		}
	}
	return nil
}
