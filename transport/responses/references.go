package responses

import (
	"bytes"
	"encoding/json/jsontext"
	"fmt"

	"krater/transport/api"
)

// referenceType is the type of an item that stands for one of an earlier response.
const referenceType = "item_reference"

// resolve puts the items that an input refers to in the place of the references.
func (d *Door) resolve(owner string, input jsontext.Value) (jsontext.Value, *api.Error) {
	if input.Kind() != '[' || !bytes.Contains(input, []byte(referenceType)) {
		return input, nil
	}
	list, err := elements("input", input, maxItems)
	if err != nil {
		return nil, err
	}
	wanted := map[string]int{} // ids, and the place of the first reference
	ids := make([]string, len(list))
	for i, raw := range list {
		if kind, _ := api.MemberString(raw, "type"); kind != referenceType {
			continue
		}
		var ref struct {
			Type string  `json:"type"`
			ID   *string `json:"id"`
		}
		param := fmt.Sprintf("input[%d]", i)
		if err := api.DecodeAt(param, raw, &ref); err != nil {
			return nil, err
		}
		if ids[i], err = required(param, "id", ref.ID, maxCallID); err != nil {
			return nil, err
		}
		if _, seen := wanted[ids[i]]; !seen {
			wanted[ids[i]] = i
		}
	}
	if len(wanted) == 0 {
		return input, nil
	}
	found := d.store.items(owner, wanted)
	out := []byte{'['}
	for i, raw := range list {
		if i > 0 {
			out = append(out, ',')
		}
		if ids[i] != "" {
			item, ok := found[ids[i]]
			if !ok {
				return nil, api.Invalid(fmt.Sprintf("input[%d].id", i), "'input[%d].id' is the id of no item of a response that is kept", i)
			}
			raw = item
		}
		if out = append(out, raw...); len(out) > api.MaxBytes {
			return nil, api.Invalid("input", "the items that 'input' refers to are longer than %d bytes", api.MaxBytes)
		}
	}
	return append(out, ']'), nil
}

// items returns the items of an owner's responses that are wanted, by id.
func (s *store) items(owner string, wanted map[string]int) map[string]jsontext.Value {
	s.mu.Lock()
	var all []*response
	for _, e := range s.byID {
		if e.r.owner == owner && !e.stale {
			all = append(all, e.r)
		}
	}
	s.mu.Unlock()
	found := map[string]jsontext.Value{}
	for _, r := range all {
		r.mu.Lock()
		for n := range r.items {
			i := &r.items[n]
			if _, ok := wanted[i.id]; ok && i.status != statusInProgress {
				found[i.id] = api.Marshal(i.whole(i.status, string(r.text[i.from:i.to]), nil))
			}
		}
		r.mu.Unlock()
	}
	return found
}
