package suspect

import (
	"testing"

	"krater/stages/model"
)

// TestIndexerMistakes: each mistake in an indexer changes values, and is named from them.
func TestIndexerMistakes(t *testing.T) {
	for _, name := range []string{"deepseek_v32", "glm_moe_dsa"} {
		if testing.Short() && name == "glm_moe_dsa" {
			continue // the same operators
		}
		t.Run(name, func(t *testing.T) {
			c := goldenCase(t, name)
			for i := range c.Config.Layers { // a text of a few tokens has to choose
				m := c.Config.Layers[i].Mixer.(model.MLA)
				m.Index.TopK = 3
				c.Config.Layers[i].Mixer = m
			}
			tried := 0
			for _, op := range []string{"indexer_query", "indexer_keys", "indexer_weights", "indexer_scores", "selected", "attn"} {
				c.Layer, c.Op = 1, op
				tried += named(t, c)
			}
			if tried < 30 {
				t.Errorf("%d mistakes tried", tried)
			}
		})
	}
}
