package actors

import (
	"math/rand/v2"

	"krater/actors/engine"
	"krater/stages/sample"
	"krater/stages/text/grammar"
)

// choices say how the tokens of one answer are chosen. They do not change, unlike the samplers made of them.
type choices struct {
	g       *Gateway
	params  sample.Params
	prompt  []int32
	grammar *grammar.Grammar // of the answer; nil: none
	param   string           // the field of the request that asks for it
	budget  int              // tokens of reasoning; 0: any number
}

// choices reads them from a request.
func (g *Gateway) choices(req *engine.Request, prompt []int32) (*choices, error) {
	compiled, err := g.constrain(req, prompt)
	if err != nil {
		return nil, err
	}
	s := req.Sampling
	seed := rand.Uint64()
	if s.Seed != nil {
		seed = *s.Seed
	}
	c := &choices{g: g, prompt: prompt, grammar: compiled, param: "tools", budget: g.budget(req), params: sample.Params{
		Temperature: s.Temperature, TopP: s.TopP, TopK: s.TopK, MinP: s.MinP,
		RepetitionPenalty: s.RepetitionPenalty, PresencePenalty: s.PresencePenalty, FrequencyPenalty: s.FrequencyPenalty,
		LogitBias: s.LogitBias, Seed: seed, Logprobs: req.Logprobs,
		StopIDs: append([]int32{}, req.StopIDs...), EOS: g.opt.EOS, IgnoreEOS: req.IgnoreEOS, MinTokens: req.MinTokens,
	}}
	if req.Format != nil {
		c.param = req.Format.Param
	}
	if req.Prompt.Suffix != nil {
		c.params.StopIDs = append(c.params.StopIDs, g.infillStops()...)
	}
	if req.PromptOnly { // whatever comes ends the request by its length
		c.params.StopIDs, c.params.EOS = nil, nil
	}
	return c, nil
}

// sampler makes the request's token chooser, after it has made these choices.
func (c *choices) sampler(answer []int32) (*sample.Sequence, error) {
	params := c.params
	if c.grammar != nil {
		limits := &constraint{matcher: c.grammar.Matcher(), none: c.g.vocabulary().None(), param: c.param}
		for _, id := range answer {
			if err := limits.accept(id); err != nil {
				return nil, err
			}
		}
		params.Allow, params.Took, params.Barred = limits.allow, limits.took, limits.barred
	}
	if c.budget != 0 {
		b := c.g.newBudget(c.budget, c.prompt)
		for _, id := range answer {
			b.took(id)
		}
		b.bind(&params)
	}
	q, err := sample.New(params, c.prompt, c.g.opt.Vocab)
	if err == nil {
		q.After(answer)
	}
	return q, err
}
