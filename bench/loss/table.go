package loss

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"krater/kernels/tensor"
	"krater/stages/model"
)

// Clear is the margin between the two largest logits from which rounding should not change a token.
const Clear = 0.4

// Tokens is how the golden continuations of a model change, each token chosen after the golden ones before it.
type Tokens struct {
	Clear  int // tokens with a margin over Clear
	Wrong  int // of Clear, those that change
	Forced int // of Clear, those that change although the model has the experts that it chooses unrounded
	// Chosen are the choices of experts, one for each token and layer, and Other those that change.
	Chosen, Other int
}

// Tokens continues every prompt.
func (m *Model) Tokens(r Rounding) (out Tokens, err error) {
	for _, p := range m.Golden.Prompts {
		ids := slices.Concat(p.IDs, p.Greedy)
		plain, err := m.Run(ids, Rounding{}, nil)
		if err != nil {
			return out, err
		}
		own, err := m.Run(ids, r, nil)
		if err != nil {
			return out, err
		}
		forced, err := m.Run(ids, r, plain.Choices)
		if err != nil {
			return out, err
		}
		for layer, tokens := range plain.Choices {
			for t, experts := range tokens {
				if out.Chosen++; !slices.Equal(experts, own.Choices[layer][t]) {
					out.Other++
				}
			}
		}
		for i, want := range p.Greedy {
			if p.Margin[i] <= Clear {
				continue
			}
			out.Clear++
			if argmax(own.Logits[len(p.IDs)+i-1]) != int(want) {
				out.Wrong++
			}
			if argmax(forced.Logits[len(p.IDs)+i-1]) != int(want) {
				out.Forced++
			}
		}
	}
	return out, nil
}

func argmax(x []float64) int { return slices.Index(x, slices.Max(x)) }

// Table prints what INT8 experts cost each golden model in the folders of root.
func Table(w io.Writer, root string) error {
	dirs, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "| model | BF16, all of it | weights | rows | both | groups of 128 | choices of experts that change | clear tokens that change | with the experts of the golden |\n|---|---|---|---|---|---|---|---|---|")
	for _, d := range dirs {
		if !d.IsDir() {
			continue
		}
		switch err := line(w, filepath.Join(root, d.Name())); {
		case errors.Is(err, ErrDense), errors.Is(err, model.ErrFamily):
		case err != nil:
			return fmt.Errorf("%s: %w", d.Name(), err)
		}
	}
	return nil
}

// line is a model's.
func line(w io.Writer, dir string) error {
	m, err := Open(dir)
	if err != nil {
		return err
	}
	defer m.Close()
	var facts struct {
		Checks struct {
			BF16 float64 `json:"bfloat16_logits_relative_l2"`
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, "facts.json"))
	if err == nil {
		err = json.Unmarshal(data, &facts)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "| %s | %.3f ", m.Golden.Name, facts.Checks.BF16)
	g32, g128 := tensor.INT8.By(32), tensor.INT8.By(128)
	for _, r := range []Rounding{{Weights: g32}, {Rows: g32}, {g32, g32}, {g128, g128}} {
		e, err := m.L2(r)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "| %.4f ", e)
	}
	t, err := m.Tokens(Rounding{g32, g32})
	if err == nil {
		_, err = fmt.Fprintf(w, "| %d of %d | %d of %d | %d |\n", t.Other, t.Chosen, t.Wrong, t.Clear, t.Forced)
	}
	return err
}
