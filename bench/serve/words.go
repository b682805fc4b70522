package serve

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"krater/transport/api"
	"krater/transport/client"
)

// Words are texts of one token each, in any order: what prompts of an exact length are made of.
type Words struct {
	texts []string
	ids   []int32
	// of a chat's template, in tokens: around one user message, and what a system message and
	// another pair of answer and question add
	around, system, pair int
	// Context is the model's, prompt and answer together; 0 if the server does not say.
	Context int
}

// wordsLeast is the smallest useful number of words.
const wordsLeast = 8

// candidates are frequent words of English with the space that byte-level tokenizers put before
// them, and single letters as a fallback.
var candidates = []string{
	" the of and to in a is that it was for on are as with his they at be this from have or by one had not but " +
		"what all were when we there can an your which their said if do will each about how up out them then she " +
		"many some so these would other into has more her two like him see time could no make than first been its " +
		"who now people my made over did down only way find use may water long little very after words called just " +
		"where most know get through back much go good new write our me man too any day same right look think also " +
		"around another came come work three must because does part even place well such here take why help put " +
		"different away again off went old number great tell men say small every found still between name should " +
		"home big give air line set own under read last never us left end along while might next sound below saw " +
		"something thought both few those always show large often together asked house world going want school " +
		"ship bird river bridge stone candle book horse garden engine clock light anchor tower",
	"a b c d e f g h i j k l m n o p q r s t u v w x y z",
}

// FindWords asks the server's tokenizer for words. With chat it also measures what the chat
// template adds.
func FindWords(ctx context.Context, c *client.Client, chat bool) (*Words, error) {
	for i, list := range candidates {
		space := " "
		if i > 0 {
			space = ""
		}
		w, err := findWords(ctx, c, strings.Fields(list), space)
		if err != nil {
			return nil, fmt.Errorf("the tokenizer of the server: %w", err)
		}
		if w == nil {
			continue
		}
		if chat {
			if err := w.measure(ctx, c); err != nil {
				return nil, fmt.Errorf("the chat template of the server: %w", err)
			}
		}
		return w, nil
	}
	return nil, fmt.Errorf("the server's tokenizer has fewer than %d of the words that prompts are made of", wordsLeast)
}

// findWords returns the words of a list that remain single tokens next to each other; nil if they
// are too few.
func findWords(ctx context.Context, c *client.Client, list []string, space string) (*Words, error) {
	w := &Words{}
	known := map[int32]bool{}
	for _, text := range list {
		text = space + text
		// Thrice, so that no joint with a neighbour of its kind is taken for a word.
		ids, limit, err := tokens(ctx, c, strings.Repeat(text, 3))
		if err != nil {
			return nil, err
		}
		w.Context = limit
		if len(ids) == 3 && ids[0] == ids[1] && ids[1] == ids[2] && !known[ids[0]] {
			known[ids[0]] = true
			w.texts, w.ids = append(w.texts, text), append(w.ids, ids[0])
		}
	}
	if len(w.texts) < wordsLeast {
		return nil, nil
	}
	// In a mixed text they must be the same tokens, which letters are not in most tokenizers.
	r := rand.New(rand.NewPCG(1, 1))
	mixed := w.draw(r, 512)
	ids, _, err := tokens(ctx, c, w.text(mixed))
	if err != nil || len(ids) != len(mixed) {
		return nil, err
	}
	return w, nil
}

func tokens(ctx context.Context, c *client.Client, text string) (ids []int32, limit int, err error) {
	off := false
	a, err := c.Tokenize(ctx, api.TokenizeRequest{Prompt: &text, AddSpecialTokens: &off})
	if err != nil {
		return nil, 0, err
	}
	return a.Tokens, a.MaxModelLen, nil
}

// measure finds what the template adds to the words of one user message, and what further messages
// add.
func (w *Words) measure(ctx context.Context, c *client.Client) error {
	count := func(roles ...string) (int, error) {
		var messages []client.Message
		for i, role := range roles {
			messages = append(messages, client.Message{Role: role, Content: w.text([]int32{int32(i)})})
		}
		a, err := c.Tokenize(ctx, api.TokenizeRequest{Messages: client.Messages(messages...)})
		if err != nil {
			return 0, err
		}
		return a.Count - len(roles), nil
	}
	var err error
	if w.around, err = count("user"); err != nil {
		return err
	}
	three, err := count("user", "assistant", "user")
	if err != nil {
		return err
	}
	w.pair = three - w.around
	two, err := count("system", "user")
	w.system = two - w.around
	return err
}

// draw returns n words at random, as places in the list.
func (w *Words) draw(r *rand.Rand, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(r.IntN(len(w.texts)))
	}
	return out
}

func (w *Words) text(words []int32) string {
	var b strings.Builder
	for _, i := range words {
		b.WriteString(w.texts[i])
	}
	return b.String()
}
