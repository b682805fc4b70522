package predict

import (
	"fmt"
	"math"
	"strings"

	"krater/scheduler/planner"
	"krater/scheduler/planner/forecast"
	"krater/scheduler/planner/rates"
	"krater/stages/weights"
)

// Report is the output of krater plan.
type Report struct {
	Model      string               `json:"model"`
	Files      string               `json:"files,omitempty"`      // formats and size of quantised weights
	Cannot     string               `json:"cannot_run,omitempty"` // why this version cannot run the model
	Note       string               `json:"note,omitempty"`       // why there are no candidates
	Rates      *rates.Rates         `json:"rates,omitempty"`
	Known      Known                `json:"rates_from"`
	Skew       string               `json:"routing_skew,omitempty"`
	Served     *forecast.Served     `json:"served,omitempty"` // by which the forecast of learned was corrected
	Budget     forecast.Budget      `json:"budget"`
	Room       int64                `json:"expert_room"` // GPU memory for experts, in bytes
	Experts    int64                `json:"expert_bytes"`
	Work       forecast.Work        `json:"work"`
	Prefill    string               `json:"prefill,omitempty"` // the chosen strategies
	Decode     string               `json:"decode,omitempty"`
	Flags      string               `json:"flags,omitempty"` // flags for krater serve
	KVToken    int64                `json:"-"`               // bytes per token of the KV cache
	made       *forecast.Forecast   `json:"-"`
	Candidates []forecast.Candidate `json:"candidates"`
}

func newPlanReport(name string, known Known, c *forecast.Case, made *forecast.Forecast) *Report {
	r := &Report{
		Model: name, Rates: &c.Rates, Known: known, Skew: c.Skew.Name, Budget: c.Budget, Room: max(0, c.Budget.Room(0)),
		Experts: int64(c.Shape.MoE*c.Shape.Experts) * c.Shape.ExpertCard, Work: c.Work, KVToken: c.Shape.KVToken, made: made, Candidates: made.Candidates,
	}
	if made.Prefill != nil {
		r.Prefill, r.Decode = made.Prefill.Name(), made.Decode.Name()
		r.Flags = fmt.Sprintf("--prefill-strategy %s --decode-strategy %s", r.Prefill, r.Decode)
		if n := made.PrefillExperts; n > 0 {
			r.Flags += fmt.Sprintf(" --prefill-expert-vram %d", int64(n)*c.Shape.ExpertCard)
		}
	}
	return r
}

// Title returns the model's name, and what its files hold if that is quantised.
func (r *Report) Title() string {
	if r.Files == "" {
		return r.Model
	}
	return fmt.Sprintf("%s (%s)", r.Model, r.Files)
}

// typesMost bounds the types that are named.
const typesMost = 4

// Types says which types the weights of files have: "Q4_K 12.1 GiB, Q6_K 3.2 GiB, F32 4.0 MiB".
func Types(list []weights.TypeBytes) string {
	var parts []string
	for _, t := range list[:min(len(list), typesMost)] {
		parts = append(parts, t.Type+" "+planner.Size(t.Bytes))
	}
	if more := len(list) - typesMost; more > 0 {
		parts = append(parts, planner.Count(more, "type")+" more")
	}
	return strings.Join(parts, ", ")
}

// ServedLine says what the forecast of learned was corrected by.
func (r *Report) ServedLine() string {
	v := r.Served
	return fmt.Sprintf("learned is corrected by %s that this machine served: %.0f %% of its experts were on the GPU, which had places for %.0f %% of all, and a step of %s took %s ms",
		planner.Count(int(v.Tokens), "token"), 100*v.HitRate, 100*v.Places, planner.Count(int(math.Round(v.Rows)), "stream"), forecast.Number(1e3*v.Seconds))
}

// Line returns the recommendation in one sentence.
func (r *Report) Line() string {
	if r.Prefill == "" {
		why := r.Note
		if why == "" {
			why = "nothing fits: " + r.Candidates[0].Prefill.Reason
		}
		return "strategies: " + why
	}
	p, d := &r.made.Prefill.Prefill, &r.made.Decode.Decode
	return fmt.Sprintf("strategies: prefill %s, %s tok/s of %d tokens (%s); decode %s, %s tok/s of %s (%s)",
		r.Prefill, forecast.Number(p.Decides.PerSecond), p.Decides.N, p.Reason, r.Decode, forecast.Number(d.Decides.PerSecond), planner.Count(d.Decides.N, "stream"), d.Reason)
}
