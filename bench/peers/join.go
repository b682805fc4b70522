package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"krater/bench/stat"
)

// theirReport is a test of llama-bench -o json.
type theirReport struct {
	Prompt  int       `json:"n_prompt"`
	Gen     int       `json:"n_gen"`
	Depth   int       `json:"n_depth"`
	Threads int       `json:"n_threads"`
	Type    string    `json:"model_type"`
	Samples []float64 `json:"samples_ts"` // tokens a second
	CPUMS   float64   `json:"cpu_ms"`     // least processor time of a prompt or a token, of bench/peers/steps
}

// ourReport is the output of krater bench model --json.
type ourReport struct {
	Model     string    `json:"model"`
	Precision string    `json:"precision"`
	Threads   int       `json:"threads"`
	StepsMS   []float64 `json:"steps_ms"`
	CPUMS     float64   `json:"decode_cpu_ms"`
	ReadGBps  float64   `json:"read_gbps"`
	Ratio     float64   `json:"decode_ratio"`
	Regime    string    `json:"regime"`
	Prefill   []struct {
		Tokens  int       `json:"tokens"`
		Samples []float64 `json:"samples_tok_s"`
		CPUMS   float64   `json:"cpu_ms"`
	} `json:"prefill"`
}

// speed is a sample of tokens per second. The plateau is the median of the faster half: the speed
// of a shared machine in its quiet moments.
type speed struct {
	N       int     `json:"n"`
	P50     float64 `json:"p50"`
	Plateau float64 `json:"plateau"`
	Best    float64 `json:"best"`
}

func speedOf(s stat.Sample) speed {
	return speed{len(s), s.Median(), s.Percentile(0.75), s.Percentile(1)}
}

// pair is the speeds of both programs; ratios are ours to theirs.
type comparison struct {
	Test    string  `json:"test"`
	Threads int     `json:"threads"`
	Ours    speed   `json:"ours"`
	Theirs  speed   `json:"theirs"`
	P50     float64 `json:"ratio_p50"`
	Plateau float64 `json:"ratio_plateau"`
	Best    float64 `json:"ratio_best"`
	CPU     float64 `json:"ratio_cpu"` // theirs to ours, of the least processor time; 0: unknown
}

// joined is the whole comparison.
type joined struct {
	Model     string   `json:"model"`
	Precision string   `json:"precision"`
	Peer      string   `json:"peer_model"`
	Regimes   []string `json:"regimes"` // of our runs, in order
	// Read is decode as a share of plain reads, by the number of threads: the median of our runs.
	Read  map[int]float64 `json:"read"`
	Tests []comparison    `json:"tests"`
}

// test is one comparison: prompt or decoded tokens with a number of threads.
type test struct {
	prompt  int // 0: decode
	threads int
	cpu     bool // its samples are processor time in ms, not speeds
}

type samples map[test]stat.Sample

func (s samples) add(t test, more ...float64) { s[t] = append(s[t], more...) }

func (t test) name() string {
	if t.prompt == 0 {
		return "decode"
	}
	return fmt.Sprintf("prefill %d", t.prompt)
}

// warmUp is the number of samples left out at the start of a run, in which the peer repacks
// weights.
const warmUp = 15

// join compares reports and writes a table or JSON.
func join(ours, theirs string, asJSON bool, out io.Writer) error {
	if ours == "" || theirs == "" {
		return errors.New("join: --ours and --theirs name the reports")
	}
	j := joined{}
	a, b := samples{}, samples{}
	block, err := readTheirs(theirs, b, &j)
	if err != nil {
		return err
	}
	if err := readOurs(ours, block, a, &j); err != nil {
		return err
	}
	for t, theirs := range b {
		if ours := a[t]; len(ours) > 0 && len(theirs) > 0 && !t.cpu {
			x := comparison{Test: t.name(), Threads: t.threads, Ours: speedOf(ours), Theirs: speedOf(theirs)}
			x.P50, x.Plateau, x.Best = stat.Ratio(x.Ours.P50, x.Theirs.P50), stat.Ratio(x.Ours.Plateau, x.Theirs.Plateau), stat.Ratio(x.Ours.Best, x.Theirs.Best)
			timed := t
			timed.cpu = true
			x.CPU = stat.Ratio(b[timed].Percentile(0), a[timed].Percentile(0))
			j.Tests = append(j.Tests, x)
		}
	}
	if len(j.Tests) == 0 {
		return errors.New("join: no test is in both: the same threads and prompt lengths are wanted")
	}
	slices.SortFunc(j.Tests, func(a, b comparison) int {
		if c := strings.Compare(a.Test, b.Test); c != 0 {
			return c
		}
		return a.Threads - b.Threads
	})
	if asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(j)
	}
	return j.table().Text(out)
}

func (j *joined) table() *stat.Table {
	t := &stat.Table{
		Title:   fmt.Sprintf("%s (%s) against %s, tokens/s; our runs: %s", j.Model, j.Precision, j.Peer, strings.Join(j.Regimes, ", ")),
		Columns: []string{"test", "threads", "ours p50", "plateau", "best", "theirs p50", "plateau", "best", "ratio p50", "plateau", "best", "of processor time"},
	}
	for _, x := range j.Tests {
		t.Add(x.Test, x.Threads, x.Ours.P50, x.Ours.Plateau, x.Ours.Best, x.Theirs.P50, x.Theirs.Plateau, x.Theirs.Best, x.P50, x.Plateau, x.Best, x.CPU)
	}
	return t
}

// read decodes every file of a list.
func read[T any](list string, each func(T)) error {
	for _, path := range strings.Split(list, ",") {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var v T
		if err := json.Unmarshal(data, &v); err != nil {
			return fmt.Errorf("join: %s: %w", path, err)
		}
		each(v)
	}
	return nil
}

// readTheirs collects the samples of llama-bench; block is the number of tokens per sample.
func readTheirs(list string, s samples, j *joined) (block int, err error) {
	block = 1
	err = read(list, func(all []theirReport) {
		for _, r := range all {
			if r.Depth != 0 || r.Prompt != 0 && r.Gen != 0 {
				continue
			}
			if r.Type != "" {
				j.Peer = r.Type
			}
			speeds := r.Samples
			if r.Gen != 0 {
				block = r.Gen
				speeds = speeds[min(warmUp, len(speeds)/4):]
			}
			t := test{prompt: r.Prompt, threads: r.Threads}
			s.add(t, speeds...)
			if t.cpu = true; r.CPUMS > 0 {
				s.add(t, r.CPUMS)
			}
		}
	})
	return block, err
}

// readOurs collects our samples, with decode in blocks of the same number of tokens.
func readOurs(list string, block int, s samples, j *joined) error {
	ratios := map[int]stat.Sample{}
	err := read(list, func(r ourReport) {
		j.Model, j.Precision = r.Model, r.Precision
		j.Regimes = append(j.Regimes, fmt.Sprintf("%d threads %s, decode %s of read %s GB/s", r.Threads, r.Regime, stat.Number(r.Ratio), stat.Number(r.ReadGBps)))
		ratios[r.Threads] = append(ratios[r.Threads], r.Ratio)
		s.add(test{threads: r.Threads}, stat.Sample(r.StepsMS).Blocks(block).Map(func(ms float64) float64 { return 1e3 / ms })...)
		if r.CPUMS > 0 {
			s.add(test{threads: r.Threads, cpu: true}, r.CPUMS)
		}
		for _, p := range r.Prefill {
			t := test{prompt: p.Tokens, threads: r.Threads}
			s.add(t, p.Samples...)
			if t.cpu = true; p.CPUMS > 0 {
				s.add(t, p.CPUMS)
			}
		}
	})
	j.Read = map[int]float64{}
	for threads, s := range ratios {
		j.Read[threads] = s.Median()
	}
	return err
}

// table writes comparisons as Markdown, a line for each number of threads: medians, and the ratios of
// medians, of best windows and of processor time. "Of read" is decode as a share of plain reads in our runs;
// theirs follows from the ratio of medians, as both read the same weights.
func table(list []string, out io.Writer) error {
	if len(list) == 0 {
		return errors.New(usage)
	}
	const head = " tok/s | llama.cpp | ratio | best | processor time |"
	fmt.Fprintln(out, "| type | threads | prefill"+head+" decode"+head+" of read | llama.cpp |\n|---"+strings.Repeat("|---", 13)+"|")
	for _, word := range list {
		name, path, ok := strings.Cut(word, "=")
		if !ok {
			return fmt.Errorf("table: %q is not NAME=FILE", word)
		}
		err := read(path, func(j joined) {
			for _, d := range j.Tests {
				i := slices.IndexFunc(j.Tests, func(p comparison) bool { return p.Test != d.Test && p.Threads == d.Threads })
				if d.Test != "decode" || i < 0 {
					continue
				}
				p := j.Tests[i]
				fmt.Fprintf(out, "| %s | %d | %.0f | %.0f | %.2f | %.2f | %.2f | %.1f | %.1f | %.2f | %.2f | %.2f | %.2f | %.2f |\n", name, p.Threads, p.Ours.P50, p.Theirs.P50,
					p.P50, p.Best, p.CPU, d.Ours.P50, d.Theirs.P50, d.P50, d.Best, d.CPU, j.Read[d.Threads], stat.Ratio(j.Read[d.Threads], d.P50))
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}
