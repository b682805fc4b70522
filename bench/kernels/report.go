package kernels

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"krater/bench/plot"
	"krater/bench/read"
	"krater/bench/stat"
)

// Report is the result of a run. Rates are in GB/s (10^9 bytes) of weights and scales. A ratio is
// to the median of plain reads with the same number of threads, in the same seconds and, with
// several threads, with the same number of available cores.
type Report struct {
	ReadGBps float64  `json:"read_gbps"` // with the most threads
	Level    string   `json:"level"`
	Bytes    int64    `json:"working_set_bytes"`
	Seconds  float64  `json:"seconds_per_threads"`
	Read     []Read   `json:"read"`
	Kernels  []Kernel `json:"kernels"`
}

// Read is plain reads with a number of threads.
type Read struct {
	Threads int     `json:"threads"`
	GBps    float64 `json:"gbps"`
	Regime  string  `json:"regime,omitempty"` // regime of most windows
	read.Loop
	Loops   []read.Loop   `json:"loops"`
	Regimes []RegimeShare `json:"regimes,omitempty"`
}

// RegimeShare is the share of windows in which the machine was in a state.
type RegimeShare struct {
	Regime string  `json:"regime"`
	Share  float64 `json:"share"`
	GBps   float64 `json:"gbps"`
}

// Kernel is one kernel with a number of threads, in the regime that most windows were in.
type Kernel struct {
	Name    string  `json:"name"`
	Threads int     `json:"threads"`
	Bytes   int     `json:"bytes,omitempty"` // of weights and scales, of one call
	GBps    float64 `json:"gbps"`            // median
	Ratio   float64 `json:"ratio"`           // of medians
	GOPS    float64 `json:"gops,omitempty"`
	Regime  string  `json:"regime,omitempty"`
	Windows int     `json:"windows"`
	P50     float64 `json:"p50"`
	P90     float64 `json:"p90"`
	P99     float64 `json:"p99"`
	Best    float64 `json:"best"`
	// BestRatio compares the quiet moments of both: P99 of the windows.
	BestRatio float64        `json:"ratio_best"`
	GOPSBest  float64        `json:"gops_best,omitempty"`
	Regimes   []KernelRegime `json:"regimes,omitempty"`
}

// KernelRegime is the same figures in another state of the machine.
type KernelRegime struct {
	Regime  string  `json:"regime"`
	Windows int     `json:"windows"`
	GBps    float64 `json:"gbps"`
	Ratio   float64 `json:"ratio"`
	GOPS    float64 `json:"gops,omitempty"`
}

// minorShare is the share of windows below which a regime is not listed.
const minorShare = 0.1

func gb(v float64) float64 { return v / 1e9 }

// add takes the samples of one number of threads.
func (r *Report) add(threads int, reader *read.Reader, kernels []*kernel) {
	states := kernels[0].rates.States()
	main := states[0]
	total := len(kernels[0].rates.Values)
	best := reader.Best(main)
	rd := Read{Threads: threads, GBps: best.P50, Regime: main, Loop: best, Loops: reader.In(main)}
	for _, s := range states {
		if share := float64(len(kernels[0].rates.In(s))) / float64(total); len(states) > 1 && share >= minorShare {
			rd.Regimes = append(rd.Regimes, RegimeShare{s, stat.Round(share, 2), reader.Best(s).P50})
		}
	}
	r.Read = append(r.Read, rd)
	for _, k := range kernels {
		in := k.rates.In(main).Map(gb).Summary()
		ops := k.speeds.In(main).Map(gb).Summary()
		out := Kernel{
			Name: k.name, Threads: threads, Bytes: k.bytes, GBps: in.P50, Ratio: stat.Ratio(in.P50, best.P50), GOPS: ops.P50, Regime: main, Windows: in.N,
			P50: in.P50, P90: in.P90, P99: in.P99, Best: in.Max, BestRatio: stat.Ratio(in.P99, best.P99), GOPSBest: ops.P99,
		}
		for _, s := range rd.Regimes {
			v := k.rates.In(s.Regime).Map(gb)
			out.Regimes = append(out.Regimes, KernelRegime{s.Regime, len(v), v.Median(), stat.Ratio(v.Median(), s.GBps), k.speeds.In(s.Regime).Map(gb).Median()})
		}
		r.Kernels = append(r.Kernels, out)
	}
}

// sum fills in the summary.
func (r *Report) sum() {
	top := slices.MaxFunc(r.Read, func(a, b Read) int { return a.Threads - b.Threads })
	r.ReadGBps = top.GBps
}

// Tables returns the figures for people.
func (r *Report) Tables() []stat.Table {
	reads := stat.Table{
		Title:   fmt.Sprintf("Memory read, working set %.2f GB", float64(r.Bytes)/1e9),
		Columns: []string{"threads", "GB/s", "p90", "p99", "loop", "regime"},
	}
	for _, d := range r.Read {
		reads.Add(d.Threads, d.GBps, d.P90, d.P99, d.Name, d.regimes())
	}
	table := stat.Table{
		Title:   fmt.Sprintf("Kernels, level %s: medians, as shares of the median read; best (p99) of the best read", r.Level),
		Columns: []string{"kernel", "threads", "GB/s", "p90", "p99", "of read", "best of best", "GOP/s", "best GOP/s", "windows"},
	}
	for _, k := range r.Kernels {
		row := []any{k.Name, k.Threads, k.GBps, k.P90, k.P99, k.Ratio, k.BestRatio, nil, nil, k.Windows}
		if k.GOPS > 0 {
			row[7], row[8] = k.GOPS, k.GOPSBest
		}
		table.Add(row...)
	}
	tables := []stat.Table{reads, table}
	if t := r.regimeTable(); len(t.Rows) > 0 {
		tables = append(tables, t)
	}
	return tables
}

func (d *Read) regimes() string {
	if len(d.Regimes) == 0 {
		return d.Regime
	}
	var parts []string
	for _, s := range d.Regimes {
		parts = append(parts, fmt.Sprintf("%s %.0f %% (%s GB/s)", s.Regime, 100*s.Share, stat.Number(s.GBps)))
	}
	return strings.Join(parts, ", ")
}

// regimeTable lists kernels by regime if there was more than one.
func (r *Report) regimeTable() stat.Table {
	t := stat.Table{Title: "By what the machine gave", Columns: []string{"kernel", "threads", "regime", "GB/s", "of read", "GOP/s", "windows"}}
	for _, k := range r.Kernels {
		for _, s := range k.Regimes {
			row := []any{k.Name, k.Threads, s.Regime, s.GBps, s.Ratio, nil, s.Windows}
			if s.GOPS > 0 {
				row[5] = s.GOPS
			}
			t.Add(row...)
		}
	}
	return t
}

// Text writes all tables.
func (r *Report) Text(w io.Writer) error { return stat.Text(w, r.Tables()) }

// Charts are bars of the kernels that are bound by memory, against reads, and of the GEMM kernels.
func (r *Report) Charts() []plot.Chart {
	bytes := plot.Chart{Title: "Integer kernels against memory reads", Y: "GB/s"}
	ops := plot.Chart{Title: "Integer matrix products", Y: "GOP/s"}
	for _, d := range r.Read {
		label := fmt.Sprintf("%d threads", d.Threads)
		if d.Threads == 1 {
			label = "1 thread"
		}
		bytes.Limits = append(bytes.Limits, plot.Limit{Name: "read, " + label, Y: stat.Round(d.GBps, 4)})
		b, o := plot.Series{Name: label}, plot.Series{Name: label}
		for _, k := range r.Kernels {
			if k.Threads != d.Threads {
				continue
			}
			chart, series, y := &bytes, &b, k.GBps
			if k.GOPS > 0 {
				chart, series, y = &ops, &o, k.GOPS
			}
			series.Y = append(series.Y, stat.Round(y, 4))
			if !slices.Contains(chart.Categories, k.Name) {
				chart.Categories = append(chart.Categories, k.Name)
			}
		}
		bytes.Series, ops.Series = append(bytes.Series, b), append(ops.Series, o)
	}
	charts := []plot.Chart{bytes}
	if len(ops.Categories) > 0 {
		charts = append(charts, ops)
	}
	if len(r.Read) > 2 {
		charts = append(charts, r.scaling())
	}
	return charts
}

// scaling is reads and the kernels of one row by the number of threads.
func (r *Report) scaling() plot.Chart {
	c := plot.Chart{Title: "By threads", X: "threads", Y: "GB/s"}
	all := plot.Series{Name: "read"}
	for _, d := range r.Read {
		all.X, all.Y = append(all.X, float64(d.Threads)), append(all.Y, stat.Round(d.GBps, 4))
	}
	c.Series = append(c.Series, all)
	for _, k := range r.Kernels {
		if k.GOPS > 0 || strings.HasSuffix(k.Name, "_avx2") {
			continue
		}
		i := slices.IndexFunc(c.Series, func(s plot.Series) bool { return s.Name == k.Name })
		if i < 0 {
			i = len(c.Series)
			c.Series = append(c.Series, plot.Series{Name: k.Name})
		}
		s := &c.Series[i]
		s.X, s.Y = append(s.X, float64(k.Threads)), append(s.Y, stat.Round(k.GBps, 4))
	}
	return c
}
