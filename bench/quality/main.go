// Command quality prints how far a model is from itself when its routed experts are rounded to each
// number format. The formats are this program's, with scales searched and with error
// feedback, and GGUF's types that have an encoder here. Weights are rounded and widened; activations
// stay float32. A second table has what INT8 costs the golden models, and why (bench/loss). `make quality`
// runs it on the built-in model.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"krater/bench/loss"
	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/calibration"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/ppl"
	"krater/stages/text/tokenizer"
	"krater/stages/weights"
	"krater/stages/weights/cache"
	"krater/stages/weights/gguf"
	"krater/stages/weights/scaled"
)

const window = 512 // tokens

func main() {
	dir := flag.String("model", "models/krater-tiny", "folder of the model")
	text := flag.String("text", "models/krater-tiny/heldout.txt", "text: measured at the start, calibrated in the second half")
	measured := flag.Int("tokens", 4096, "tokens to measure")
	learned := flag.Int("calibration-tokens", 16384, "tokens to calibrate with")
	only := flag.String("only", "", "regular expression: the experts to measure")
	golden := flag.String("goldens", "testdata/goldens", "folder of the golden models; empty: none")
	flag.Parse()
	err := run(os.Stdout, *dir, *text, *measured, *learned, *only)
	if err == nil && *golden != "" {
		fmt.Println()
		err = loss.Table(os.Stdout, *golden)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "quality:", err)
		os.Exit(1)
	}
}

// bench is the model, what it says as its files hold it, and what is rounded.
type bench struct {
	cfg   *model.Config
	set   *weights.Set
	model *direct.Model
	dev   *cpu.Device
	seen  *calibration.Collector
	want  [][]float32 // logits of each position of ids
	ids   []int32
}

// row is a line of the table.
type row struct {
	name, method string
	bits         float64
	round        func(b *bench, layer, expert int) (w13, w2 []float32, err error)
}

func run(out io.Writer, dir, text string, measured, learned int, only string) error {
	b := &bench{}
	chosen, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return err
	}
	if b.cfg, err = model.Parse(data); err != nil {
		return err
	}
	if b.set, err = scaled.Open(dir); err != nil {
		return err
	}
	defer b.set.Close()
	if b.dev, err = cpu.New(cpu.Options{}); err != nil {
		return err
	}
	defer b.dev.Close()
	limits := stages.Limits{Tokens: window, Seqs: 1, LogitRows: window, Blocks: 2 * window / 16, BlockTokens: 16}
	parts, err := load.Model(b.dev, b.cfg, b.set, load.Options{Limits: limits, KVType: tensor.F32})
	if err != nil {
		return err
	}
	defer parts.Close()
	if b.model, err = direct.New(b.dev, parts); err != nil {
		return err
	}
	defer b.model.Close()
	all, err := tokens(dir, text)
	if err != nil {
		return err
	}
	if len(all) < 2*max(measured, window) || len(all)/2 < window {
		return fmt.Errorf("%s has %d tokens, want %d or more", text, len(all), 2*max(measured, window))
	}
	b.ids = all[:measured]
	if err := b.learn(all[len(all)/2:][:min(learned, len(all)/2)]); err != nil {
		return err
	}
	if err := b.score(func(pos int, logits []float32) { b.want = append(b.want, slices.Clone(logits)) }); err != nil {
		return err
	}
	fmt.Fprintln(out, "| experts | method | bits a weight | MiB | mean KL | KL, 99th percentile | top-1 |\n|---|---|---|---|---|---|---|")
	for _, r := range rows(b.cfg) {
		if !chosen.MatchString(r.name) {
			continue
		}
		if err := b.measure(out, r); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return nil
}

func tokens(dir, text string) ([]int32, error) {
	data, err := os.ReadFile(text)
	if err != nil {
		return nil, err
	}
	tok, err := tokenizer.Load(os.DirFS(dir))
	if err != nil {
		return nil, err
	}
	return tok.Encode(string(data), tokenizer.EncodeOptions{ParseSpecial: true}), nil
}

// learn collects what the experts see on a text.
func (b *bench) learn(ids []int32) (err error) {
	if b.seen, err = calibration.New(b.cfg, b.set, 0, len(b.cfg.Layers)); err != nil {
		return err
	}
	for part := range slices.Chunk(ids, window) {
		if err := drive.Run(b.model, []*drive.Sequence{{Prompt: part}}, drive.Options{Probe: b.seen}); err != nil {
			return err
		}
	}
	return b.seen.Err()
}

// score runs the measured text, window by window. see is called for every position.
func (b *bench) score(see func(pos int, logits []float32)) error {
	at := 0
	for part := range slices.Chunk(b.ids, window) {
		s := &drive.Sequence{Prompt: part, All: true, See: func(_ int, logits []float32) {
			see(at, logits)
			at++
		}}
		if err := drive.Run(b.model, []*drive.Sequence{s}, drive.Options{}); err != nil {
			return err
		}
	}
	return nil
}

// measure rounds the experts and prints a line.
func (b *bench) measure(out io.Writer, r row) error {
	h, f, count := b.cfg.Hidden, b.cfg.MoE.FF, 0
	var bufs []device.Buffer
	defer func() {
		for _, buf := range bufs {
			buf.Free()
		}
	}()
	mat := func(x []float32, rows, cols int) (m device.Mat, err error) {
		if m, err = device.AllocMat(b.dev, tensor.F32, rows, cols); err == nil {
			bufs = append(bufs, m.Buf)
			copy(m.F32s(), x)
		}
		return m, err
	}
	for _, g := range b.model.Parts.Groups {
		for layer := g.First; layer < g.Last; layer++ {
			if !g.MoE(layer) {
				continue
			}
			bank := g.Bank(layer).Routed
			for e := range bank {
				w13, w2, err := r.round(b, layer, e)
				if err != nil {
					return err
				}
				gate, err1 := mat(w13[:f*h], f, h)
				up, err2 := mat(w13[f*h:], f, h)
				down, err3 := mat(w2, h, f)
				if err := errors.Join(err1, err2, err3); err != nil {
					return err
				}
				bank[e] = device.Expert{Gate: gate, Up: up, Down: down}
				count += 3 * h * f
			}
		}
	}
	var kl []float64
	var sum, same float64
	if err := b.score(func(pos int, logits []float32) {
		d := ppl.KL(b.want[pos], logits)
		kl, sum = append(kl, d), sum+d
		if drive.Argmax(b.want[pos]) == drive.Argmax(logits) {
			same++
		}
	}); err != nil {
		return err
	}
	slices.Sort(kl)
	n := float64(len(kl))
	_, err := fmt.Fprintf(out, "| %s | %s | %.3f | %.1f | %.4f | %.3f | %.4f |\n", r.name, r.method, r.bits, r.bits*float64(count)/8/(1<<20), sum/n, kl[len(kl)*99/100], same/n)
	return err
}

// rows are the lines of the table.
func rows(cfg *model.Config) (list []row) {
	list = append(list, row{"BF16", "as in the files", 16, func(b *bench, layer, e int) ([]float32, []float32, error) { return b.read(layer, e) }})
	for _, f := range []tensor.Format{tensor.INT8.By(128), tensor.Q8_0.By(32), tensor.INT4.By(32), tensor.INT4.By(64), tensor.INT4.By(128), tensor.INT3.By(64), tensor.INT3.By(128)} {
		methods := []cache.Method{cache.Search, cache.Feedback}
		if f.Bits() == 8 {
			methods = methods[:1]
		}
		w13, w2, err := f.Network(tensor.CPU, cfg.Hidden, cfg.MoE.FF)
		if err != nil {
			continue
		}
		bits := 8 * float64(w13.Bytes()+w2.Bytes()) / float64(3*cfg.Hidden*cfg.MoE.FF)
		for _, m := range methods {
			list = append(list, row{f.String(), m.String(), bits, func(b *bench, layer, e int) ([]float32, []float32, error) {
				s := &cache.Weights{Config: b.cfg, Set: b.set, Format: f, Method: m, Stats: b.seen.Expert}
				q13, q2, err := s.Expert(layer, e)
				if err != nil {
					return nil, nil, err
				}
				return q13.Dequantize(), q2.Dequantize(), nil
			}})
		}
	}
	for _, t := range []gguf.Type{gguf.Q8_0, gguf.Q6_K, gguf.Q5_K, gguf.Q4_K, gguf.Q4_0, gguf.IQ4_XS, gguf.MXFP4, gguf.IQ3_S, gguf.IQ3_XXS, gguf.IQ2_XS, gguf.IQ2_XXS} {
		b := t.Block()
		bits := 8 * float64(b.Bytes) / float64(b.Elements)
		list = append(list, row{t.String(), "plain", bits, func(b *bench, layer, e int) ([]float32, []float32, error) { return b.encode(t, layer, e, false) }})
		if t == gguf.IQ3_S {
			list = append(list, row{t.String(), "weighted", bits, func(b *bench, layer, e int) ([]float32, []float32, error) { return b.encode(t, layer, e, true) }})
		}
	}
	return list
}

// read is an expert as the files hold it.
func (b *bench) read(layer, e int) (w13, w2 []float32, err error) {
	n := b.cfg.ExpertNames(layer, e)
	size := b.cfg.Hidden * b.cfg.MoE.FF
	w13, w2 = make([]float32, 2*size), make([]float32, size)
	for _, x := range []struct {
		name string
		dst  []float32
	}{{n.Gate, w13[:size]}, {n.Up, w13[size:]}, {n.Down, w2}} {
		t, ok := b.set.Tensor(x.name)
		if !ok {
			return nil, nil, fmt.Errorf("%w: %s", model.ErrTensorMissing, x.name)
		}
		if err := t.Floats(x.dst, 0); err != nil {
			return nil, nil, err
		}
	}
	return w13, w2, nil
}

// encode rounds an expert to a type of GGUF. Blocks longer than a row go on in the next. Errors are
// weighted by what each column saw on the text.
func (b *bench) encode(t gguf.Type, layer, e int, weighted bool) (w13, w2 []float32, err error) {
	if w13, w2, err = b.read(layer, e); err != nil {
		return nil, nil, err
	}
	in, mid, ok := b.seen.Expert(layer, e)
	if !ok {
		return nil, nil, fmt.Errorf("the text does not reach layer %d", layer)
	}
	for i, x := range [][]float32{w13, w2} {
		var weight []float32
		if weighted {
			columns := [][]float32{in.Diagonal(), mid.Diagonal()}[i]
			weight = slices.Repeat(columns, len(x)/len(columns))
		}
		block := t.Block()
		coded := make([]byte, len(x)/block.Elements*block.Bytes)
		if err := errors.Join(t.EncodeWeighted(coded, x, weight), t.Decode(x, coded)); err != nil {
			return nil, nil, err
		}
	}
	return w13, w2, nil
}
