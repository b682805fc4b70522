package responses

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json/jsontext"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"krater/transport/api"
)

// Limits of a page of items.
const (
	pageDefault = 20
	pageMost    = 100
)

// InputItem is an item of a conversation as clients read it: a message, the reasoning, a call, or its
// result.
type InputItem struct {
	ID        string     `json:"id"`
	Type      string     `json:"type"` // message, reasoning, function_call or function_call_output
	Status    string     `json:"status"`
	Role      string     `json:"role,omitempty"`
	Summary   []struct{} `json:"summary,omitzero"`
	Content   []textPart `json:"content,omitzero"`
	CallID    string     `json:"call_id,omitempty"`
	Name      string     `json:"name,omitempty"`
	Arguments *string    `json:"arguments,omitzero"`
	Output    *string    `json:"output,omitzero"`
}

type textPart struct {
	Type        string     `json:"type"` // input_text, output_text or reasoning_text
	Text        string     `json:"text"`
	Annotations []struct{} `json:"annotations,omitzero"` // of output_text
}

// items returns the turn as items, without ids.
func (t *turn) items() (out []InputItem) {
	add := func(i InputItem) {
		i.Status = statusCompleted
		out = append(out, i)
	}
	if t.role == "tool" {
		text := strings.Join(t.parts, "\n") // as most templates show them
		add(InputItem{Type: "function_call_output", CallID: t.callID, Output: &text})
		return out
	}
	if t.reasoning != "" {
		add(InputItem{Type: "reasoning", Summary: []struct{}{}, Content: []textPart{{Type: "reasoning_text", Text: t.reasoning}}})
	}
	if len(t.parts) > 0 || t.role != "assistant" {
		i := InputItem{Type: "message", Role: t.role, Content: []textPart{}}
		for _, p := range t.parts {
			part := textPart{Type: "input_text", Text: p}
			if t.role == "assistant" {
				part.Type, part.Annotations = "output_text", []struct{}{}
			}
			i.Content = append(i.Content, part)
		}
		add(i)
	}
	for _, c := range t.calls {
		add(InputItem{Type: "function_call", CallID: c.id, Name: c.name, Arguments: &c.arguments})
	}
	return out
}

// prefixes begin the ids of items, by type.
var prefixes = map[string]string{"message": "msg_", "reasoning": "rs_", "function_call": "fc_", "function_call_output": "fco_"}

// readTurns reads messages that joinTurns has written.
func readTurns(messages []byte) ([]turn, error) {
	raw := slices.Concat([]byte{'['}, messages, []byte{']'})
	var all []struct {
		Role      string         `json:"role"`
		Content   jsontext.Value `json:"content"`
		Reasoning string         `json:"reasoning_content"`
		ToolCalls []api.ToolCall `json:"tool_calls"`
		CallID    string         `json:"tool_call_id"`
	}
	if err := api.Decode(raw, &all); err != nil {
		return nil, err
	}
	turns := make([]turn, len(all))
	for i, m := range all {
		t := turn{role: m.Role, reasoning: m.Reasoning, callID: m.CallID}
		switch m.Content.Kind() {
		case '"':
			t.parts = []string{""}
			if err := api.Decode(m.Content, &t.parts[0]); err != nil {
				return nil, err
			}
		case '[':
			var parts []textPart
			if err := api.Decode(m.Content, &parts); err != nil {
				return nil, err
			}
			for _, p := range parts {
				t.parts = append(t.parts, p.Text)
			}
		}
		for _, c := range m.ToolCalls {
			t.calls = append(t.calls, call{c.ID, c.Function.Name, c.Function.Arguments})
		}
		turns[i] = t
	}
	return turns, nil
}

// input returns the messages that the response was made of, joined by commas.
func (r *response) input() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended.IsZero() {
		return r.history[:r.inputBytes]
	}
	return joinTurns(r.plan.past, r.plan.turns)
}

// inputItems is GET /v1/responses/{id}/input_items. The ids of items are made of the response's and
// their place, and stay the same.
func (d *Door) inputItems(w http.ResponseWriter, req *http.Request) {
	release := d.reads.Take(d.opt.Peer(req))
	if release == nil {
		api.Overloaded("too many responses are being fetched").Write(w)
		return
	}
	defer release()
	p, refused := readItemPage(req.URL.Query())
	if refused != nil {
		refused.Write(w)
		return
	}
	r, refused := d.store.find(d.opt.Owner(req), req.PathValue("id"), false)
	if refused != nil {
		refused.Write(w)
		return
	}
	turns, err := readTurns(r.input())
	if err != nil {
		api.FromEngine(err).Write(w)
		return
	}
	var items []InputItem
	for i := range turns {
		items = append(items, turns[i].items()...)
	}
	for i := range items {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", r.id, i))
		items[i].ID = prefixes[items[i].Type] + hex.EncodeToString(sum[:16])
	}
	p.send(w, items)
}

// itemPage is a request for a part of a list of items.
type itemPage struct {
	after string
	limit int
	asc   bool
}

func readItemPage(q url.Values) (itemPage, *api.Error) {
	p := itemPage{limit: pageDefault}
	for name, values := range q {
		switch value := values[0]; name {
		case "after":
			p.after = value
		case "limit":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > pageMost {
				return p, api.Invalid("limit", "'limit' must be between 1 and %d", pageMost)
			}
			p.limit = n
		case "order":
			if value != "asc" && value != "desc" {
				return p, api.Invalid("order", "'order' must be asc or desc")
			}
			p.asc = value == "asc"
		case "include", "include[]": // everything there is to include is included
		default:
			return p, api.BadRequest(api.CodeUnknownField, api.Clip(name), "unknown query parameter '%s'", api.Clip(name))
		}
	}
	return p, nil
}

// send answers with a page of items, which are in their order in the conversation.
func (p itemPage) send(w http.ResponseWriter, items []InputItem) {
	items = slices.Clone(items)
	if !p.asc {
		slices.Reverse(items)
	}
	if p.after != "" {
		i := slices.IndexFunc(items, func(i InputItem) bool { return i.ID == p.after })
		if i < 0 {
			api.Invalid("after", "'after' is the id of no item").Write(w)
			return
		}
		items = items[i+1:]
	}
	list := api.List[InputItem]{Object: "list", Data: items[:min(len(items), p.limit)], HasMore: len(items) > p.limit}
	if n := len(list.Data); n > 0 {
		list.FirstID, list.LastID = &list.Data[0].ID, &list.Data[n-1].ID
	}
	api.WriteJSON(w, http.StatusOK, list)
}
