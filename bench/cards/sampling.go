package cards

import (
	"fmt"

	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/ops"
	"krater/kernels/cuda/sample"
	"krater/kernels/tensor"
	host "krater/stages/sample"
)

// choose is the choice of a token a row; temperature 0 is the largest logit.
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
