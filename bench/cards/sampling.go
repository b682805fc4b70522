package cards

import (
	"fmt"
	"math"
	"time"

	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/ops"
	"krater/kernels/cuda/sample"
	"krater/kernels/device"
	"krater/kernels/tensor"
	host "krater/stages/sample"
)

// choose builds the choice of one token per row; temperature 0 chooses the largest logit.
func choose(t, vocab int, temperature, topP float64, topK int) *Case {
	c := &Case{
		Op:    "sample",
		Shape: fmt.Sprintf("T=%d V=%d temperature %g top_p %g top_k %d", t, vocab, temperature, topP, topK),
		DType: "F32",
		Bytes: float64(t * vocab * 4),
	}
	c.Rotate = t * vocab * 4
	c.build = func(d *desk) *job {
		logits, out := d.numbers(tensor.F32, t, vocab, unit), d.room(tensor.I32, t, 1)
		params := host.Params{Temperature: temperature, TopP: topP, TopK: topK, RepetitionPenalty: 1, Logprobs: -1, Seed: d.rng.Uint64()}
		rows := d.mat(tensor.I8, t, sample.RowBytes, func(b []byte) {
			for i := range t {
				r := sample.Row{Temperature: temperature, TopP: topP, TopK: topK, Seed: params.Seed + uint64(i)}
				r.Put(b[i*sample.RowBytes:])
			}
		})
		return &job{
			run: func(b *ops.Builder, i int) {
				scratch := b.Scratch(sample.Scratch(t, vocab))
				if temperature == 0 {
					sample.Argmax(b.List, out.of(i), logits.of(i), scratch)
					return
				}
				sample.Sample(b.List, out.of(i), logits.of(i), rows.of(i).At, launch.Mat{}, launch.Mat{}, scratch)
			},
			outs: []data{out},
			check: func(read reader) []Sample {
				var s []Sample
				for _, row := range d.spread(t, 4) {
					p := params
					p.Seed += uint64(row)
					q, err := host.New(p, nil, vocab)
					if err != nil {
						return nil
					}
					r, err := q.Next(floats(logits, row, 1))
					if err != nil {
						return nil
					}
					s = append(s, Sample{read(out.RowRange(row, row+1))[0], float64(r.ID), 0})
				}
				return s
			},
		}
	}
	return c
}

// changeLogits builds penalties and biases for rows of sequences with that many tokens.
func changeLogits(t, vocab, tokens int) *Case {
	c := &Case{
		Op:    "change logits",
		Shape: fmt.Sprintf("T=%d V=%d %d tokens", t, vocab, tokens),
		DType: "F32",
		Bytes: float64(4 * t * tokens),
	}
	c.Rotate = 4 * t * (vocab + tokens)
	change := device.Change{Bias: []device.Bias{{ID: 1, Add: 2}, {ID: 7, Add: -100}}, Repetition: 1.2, Presence: 0.5, Frequency: 0.25, Prompt: tokens / 2}
	words := change.Encode()
	token := func(row, at int) int32 { return int32((row*31 + at*at) % vocab) }
	c.build = func(d *desk) *job {
		width := device.ChangeWords + (tokens+3)&^3
		logits := d.numbers(tensor.F32, t, vocab, unit)
		store := d.ints(t, width, func(i int) int32 {
			switch row, at := i/width, i%width; {
			case at < len(words):
				return words[at]
			case at >= device.ChangeWords:
				return token(row, at-device.ChangeWords)
			}
			return 0
		})
		table := d.ints(t, 2, func(i int) int32 { return int32(i/2) * int32(1-i%2) })
		ids, wanted := d.ints(t, 1, func(i int) int32 { return token(i, tokens-1) }), d.ints(t, 1, func(i int) int32 { return int32(i) })
		rows := d.mat(tensor.I8, t, sample.RowBytes, func(b []byte) {
			for i := range t {
				(&sample.Row{N: uint64(tokens - change.Prompt)}).Put(b[i*sample.RowBytes:])
			}
		})
		return &job{
			run: func(b *ops.Builder, i int) {
				b.ChangeLogits(logits.of(i), &sample.Changes{Rows: rows.of(i).At, Table: table.of(i), IDs: ids.of(i), Wanted: wanted.of(i), Store: store.of(i)})
			},
			check: func(read reader) []Sample {
				var s []Sample
				for _, row := range d.spread(t, 4) {
					want, times := floats(logits, row, 1), map[int32]int{}
					for at := range tokens {
						n := 1 // for a token of the answer; else 0 means that it occurred
						if at < change.Prompt {
							n = 0
						}
						times[token(row, at)] += n
					}
					for _, b := range change.Bias {
						want[b.ID] += b.Add
					}
					for id, n := range times {
						if want[id] > 0 {
							want[id] /= change.Repetition
						} else {
							want[id] *= change.Repetition
						}
						if n > 0 {
							want[id] -= change.Presence + float32(change.Frequency*float32(n))
						}
					}
					for id, got := range read(logits.RowRange(row, row+1)) {
						s = append(s, Sample{got, float64(want[id]), 0})
					}
				}
				return s
			},
		}
	}
	return c
}

// maskLogits builds masks of about half of the tokens, in no order.
func maskLogits(t, vocab int) *Case {
	c := &Case{
		Op:    "mask logits",
		Shape: fmt.Sprintf("T=%d V=%d", t, vocab),
		DType: "F32",
		Bytes: float64(t) * float64(vocab) * (4 + 4./2 + 1./8),
	}
	c.Rotate = 4 * t * vocab
	stride, flag := device.MaskStride(vocab), device.MaskFlag(vocab)
	word := func(i int) int32 { // the masks, which are there
		if i%stride == flag {
			return 2*1 + 1
		}
		return int32(uint32(i+1) * 2654435761)
	}
	c.build = func(d *desk) *job {
		logits, masks := d.numbers(tensor.F32, t, vocab, unit), d.ints(t, stride, word)
		table := d.ints(t, 2, func(i int) int32 { return int32(2*(i%2) - 1) })
		row := d.ints(t, 1, func(i int) int32 { return int32(i) })
		rows := d.mat(tensor.I8, t, sample.RowBytes, func([]byte) {})
		return &job{
			run: func(b *ops.Builder, i int) {
				b.ChangeLogits(logits.of(i), &sample.Changes{Rows: rows.of(i).At, Table: table.of(i), IDs: row.of(i), Wanted: row.of(i), Masks: masks.of(i), Limit: time.Second})
			},
			check: func(read reader) []Sample {
				var s []Sample
				for _, r := range d.spread(t, 4) {
					want := floats(logits, r, 1)
					for id, got := range read(logits.RowRange(r, r+1)) {
						if word(r*stride+id/32)>>(id%32)&1 == 1 {
							s = append(s, Sample{got, float64(want[id]), 0})
							continue
						}
						masked := 0.
						if math.IsInf(got, -1) {
							masked = 1
						}
						s = append(s, Sample{masked, 1, 0})
					}
				}
				return s
			},
		}
	}
	return c
}
