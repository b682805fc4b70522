package direct_test

import (
	"testing"

	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/compare"
	"krater/stages/load"
)

const tiny = "../../models/krater-tiny"

// TestTinyGolden compares last logits and greedy ids, up to the end mark, of the
// default model's own golden.
func TestTinyGolden(t *testing.T) {
	lim := stages.Limits{Tokens: 64, Seqs: 3, Blocks: 48, BlockTokens: 16}
	for _, kv := range []tensor.DType{tensor.F32, tensor.BF16} {
		m := open(t, processor(t, 2), tiny, "config.json", load.Options{Limits: lim, KVType: kv, Partition: load.Even(7, 2)})
		o := compare.Options{Batch: 3, Chunk: 5}
		if kv == tensor.BF16 {
			// Only the ids must agree: the rounded cache moves logits by more than 1e-3.
			o.Tolerance = 1
		}
		agree(t, m, tiny, o)
	}
}
