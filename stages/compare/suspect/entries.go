package suspect

import (
	"fmt"
	"math"

	"krater/stages/model"
	"krater/stages/oracle"
)

// entryMistakes returns the mistakes of attention over compressed entries (DeepSeek-V4); nil for other operators.
func (l *layer) entryMistakes(op string) (list []mistake) {
	if !l.Compresses() {
		return nil
	}
	of := func(what string, r oracle.EntryReading) {
		list = append(list, mistake{what, func() []float64 { return l.ReadEntries(op, r) }})
	}
	switch op {
	case "q_unit":
		list = append(list, mistake{"queries not normed behind their product", func() []float64 { return l.Get("q") }})
	case "q_pe", "kv_rope", "indexer_query":
		for _, t := range l.entryTurns() {
			of(t.what, t.as)
		}
	case "compressed_kv", "index_entries":
		of("the halves of overlapping entries swapped", oracle.EntryReading{Swapped: true})
		of("entries of their own window alone, without the one before", oracle.EntryReading{Alone: true})
		for _, t := range l.entryTurns() {
			of(t.what, t.as)
		}
	case "indexer_scores", "selected":
		of("the ReLU of index scores missing", oracle.EntryReading{Linear: true})
		of("entries visible one token late", oracle.EntryReading{Late: true})
	case "attn", "attn_probs":
		of("the output of attention not rotated back", oracle.EntryReading{Forward: true})
		of("the sinks missing", oracle.EntryReading{NoSink: true})
		of("entries visible one token late", oracle.EntryReading{Late: true})
		of("entries of tokens within the window hidden", oracle.EntryReading{Apart: true})
		of("a sliding window one too long: a token is not counted itself", oracle.EntryReading{Longer: 1})
		of("a sliding window one too short", oracle.EntryReading{Longer: -1})
	}
	return list
}

// entryTurn is a wrong rotation.
type entryTurn struct {
	what string
	as   oracle.EntryReading
}

// entryTurns returns the usual wrong rotations where the last values of heads are rotated.
func (l *layer) entryTurns() []entryTurn {
	changed := func(change func(r *model.RopeConfig)) oracle.EntryReading {
		r := l.Rope
		change(&r)
		return oracle.EntryReading{Rope: &r}
	}
	list := []entryTurn{
		{"the first values of heads rotated, not the last", oracle.EntryReading{First: true}},
		{"rope over halves of the rotated values (halves and interleaved pairs swapped)", changed(func(r *model.RopeConfig) { r.Interleaved = !r.Interleaved })},
	}
	for _, other := range l.Config.Ropes() { // of layers with and without entries
		list = append(list, entryTurn{fmt.Sprintf("rope_theta %g, that of other layers", other.Theta), changed(func(r *model.RopeConfig) { r.InvFreq = other.InvFreq })})
	}
	for _, f := range l.otherFrequencies() {
		list = append(list, entryTurn{f.what, changed(func(r *model.RopeConfig) { r.InvFreq = f.inv })})
	}
	// YaRN divides the lowest frequency by its whole factor.
	if n := len(l.Rope.InvFreq); n > 0 {
		if factor := inverseFrequencies(l.Rope.Dim, l.Rope.Theta)[n-1] / l.Rope.InvFreq[n-1]; factor > 1.001 {
			list = append(list, entryTurn{"YaRN's attention factor on cos and sin", changed(func(r *model.RopeConfig) { r.CosSinScale = 0.1*math.Log(factor) + 1 })})
		}
	}
	return list
}
