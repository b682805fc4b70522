package actors

import (
	"context"
	"testing"

	"krater/actors/engine"
	"krater/actors/msg"
	"krater/stages"
)

// passing puts nodes that pass the batch on in the place of those that compute:
// what is left of a step is the actors' own work. The sampler chooses token 70
// for every row.
func passing(name string, n node) node {
	switch n.(type) {
	case *embedNode:
		return pass(func(c *turn, b *msg.Batch) { c.send(c.routes.groups[0], b) })
	case *groupNode:
		i := n.(*groupNode).index
		return pass(func(c *turn, b *msg.Batch) { c.send(c.routes.after(i), b) })
	case *headNode:
		return pass(func(c *turn, b *msg.Batch) { c.send(c.routes.sample, b) })
	case *sampleNode:
		return pass(func(c *turn, b *msg.Batch) {
			for i := range b.Rows {
				b.Rows[i].Result.ID = 70
			}
			c.send(c.routes.schedule, msg.NewReply(b))
		})
	}
	return n
}

// pass is a node of one function.
type pass func(c *turn, b *msg.Batch)

func (f pass) receive(c *turn, m any) { f(c, m.(*msg.Batch)) }

// BenchmarkActorStep measures a decode step of one stream through all actors,
// without any computing.
func BenchmarkActorStep(b *testing.B) {
	for _, streams := range []int{1, 8} {
		b.Run(map[int]string{1: "1 stream", 8: "8 streams"}[streams], func(b *testing.B) {
			r := newRig(b, setup{limits: stages.Limits{Tokens: 64, Seqs: 8, Blocks: 8 * 128, BlockTokens: 16}, wrap: passing})
			gw := r.gateway(b)
			b.ReportAllocs()
			b.ResetTimer()
			for steps := b.N; steps > 0; steps -= 1000 {
				var open []engine.Stream
				for range streams {
					req := greedy([]int32{70}, min(1000, max(2, steps)))
					req.Logprobs = -1
					st, err := gw.Submit(context.Background(), req)
					if err != nil {
						b.Fatal(err)
					}
					open = append(open, st)
				}
				for _, st := range open {
					if _, err := everything(st); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
