package direct

import (
	"krater/stages/drive"
)

// Score gives the logits of a text position by position (ppl.Scorer). The model
// needs a row of logits for every row of a batch to run it in large pieces.
func (m *Model) Score(ids []int32, see func(pos int, logits []float32)) error {
	return drive.Run(m, []*drive.Sequence{{Prompt: ids, All: true, See: see}}, drive.Options{})
}
