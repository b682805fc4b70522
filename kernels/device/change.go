package device

import (
	"math"
	"time"
)

// Sizes of a Change in a device's memory, in 32-bit words: its numbers and the tokens that it
// names at most. kernels/cuda/src/change.cu has them too.
const (
	changeHead   = 8
	ChangeTokens = 1280
	ChangeWords  = changeHead + 2*ChangeTokens
)

// Change says how the logits of a sequence are changed before each choice of a token. The
// steps are done in this order: Bias, Ends, then the penalties.
type Change struct {
	Bias  []Bias  // no token twice
	Ends  []int32 // tokens that may not be among the first Least ones of the answer
	Least int

	Repetition float32 // positive logits of tokens in prompt or answer are divided by it, others multiplied; 1: off
	Presence   float32 // subtracted from the logits of tokens in the answer
	Frequency  float32 // subtracted from them once for each time
	Prompt     int     // the first tokens of the sequence that are the prompt
}

// Bias is added to the logit of a token.
type Bias struct {
	ID  int32
	Add float32
}

// Penalises reports whether the tokens that the sequence has had matter.
func (c *Change) Penalises() bool {
	return c.Repetition != 1 || c.Presence != 0 || c.Frequency != 0
}

// Any reports whether there is anything to do before the choice after n tokens of the answer.
func (c *Change) Any(n int) bool { return len(c.Bias) > 0 || c.Bans(n) || c.Penalises() }

// Bans reports whether Ends may not come after n tokens of the answer.
func (c *Change) Bans(n int) bool { return n < c.Least && len(c.Ends) > 0 }

// Encoded is a Change as a device reads it, ChangeWords at most.
type Encoded []int32

// Prompt is Change.Prompt.
func (e Encoded) Prompt() int { return int(e[3]) }

// Penalises is Change.Penalises.
func (e Encoded) Penalises() bool { return e[7] != 0 }

// Encode returns c in the form that a device reads, nil if it names more tokens than a device has room for.
func (c *Change) Encode() Encoded {
	if len(c.Bias)+len(c.Ends) > ChangeTokens {
		return nil
	}
	bits := func(v float32) int32 { return int32(math.Float32bits(v)) }
	penalises := int32(0)
	if c.Penalises() {
		penalises = 1
	}
	w := make(Encoded, 0, changeHead+2*(len(c.Bias)+len(c.Ends)))
	w = append(w, bits(c.Repetition), bits(c.Presence), bits(c.Frequency), int32(c.Prompt),
		int32(len(c.Bias)), int32(len(c.Ends)), int32(min(c.Least, math.MaxInt32)), penalises)
	for _, b := range c.Bias {
		w = append(w, b.ID, bits(b.Add))
	}
	for _, id := range c.Ends {
		w = append(w, id, 0)
	}
	return w
}

// LogitChanges holds the arguments with which an accelerator changes the logits of a step's rows.
type LogitChanges struct {
	Draws Mat // [1, n*DrawWords] I32, as Choose takes them
	// Table [n, 2] I32 is the row of Store that has the row's Change, below 0 for none, and
	// the number of the row's mask, 0 for none.
	Table Mat
	IDs   Mat // [T, 1] I32: the tokens of the step
	Rows  Mat // [n, 1] I32: which of them the rows are of
	// Store [sequences, words] I32 has a Change in the first ChangeWords of a row and the
	// sequence's tokens by position behind it. The step adds its own token to them.
	Store Mat
	// Masks [n, MaskStride(V)] I32 is host memory (Accelerator.AllocShared), in which the host writes masks while the device computes. Bit i%32
	// of word i/32 of a row is 1 for token i that may come. The flag at MaskFlag(V) follows the mask: it is twice the mask's number, and 1 more
	// if the mask is there; else no token may come. The device waits for either. After Limit it writes the number to the word
	// behind the flag, and no token may come.
	Masks Mat
	Limit time.Duration
}

// MaskFlag is the word of a row of LogitChanges.Masks that says whether the mask is there. The bits before it are padded to 16 bytes.
func MaskFlag(vocab int) int { return (vocab + 127) / 128 * 4 }

// MaskStride is the size of a row of LogitChanges.Masks in words, a multiple of 16 bytes.
func MaskStride(vocab int) int { return MaskFlag(vocab) + 4 }
