package responses

import (
	"encoding/json/jsontext"
	"fmt"
	"net/http"
	"slices"

	"krater/transport/api"
)

// conversationBody is the body of the routes that make and change conversations.
type conversationBody struct {
	Items    jsontext.Value `json:"items"`
	Metadata jsontext.Value `json:"metadata"`
}

// mountConversations adds the routes of conversations.
func (d *Door) mountConversations(route func(pattern string, h http.Handler)) {
	for pattern, h := range map[string]http.HandlerFunc{
		"POST /v1/conversations":                     d.makeTalk,
		"GET /v1/conversations/{id}":                 d.getTalk,
		"POST /v1/conversations/{id}":                d.changeTalk,
		"DELETE /v1/conversations/{id}":              d.deleteTalk,
		"POST /v1/conversations/{id}/items":          d.addItems,
		"GET /v1/conversations/{id}/items":           d.listItems,
		"GET /v1/conversations/{id}/items/{item}":    d.getItem,
		"DELETE /v1/conversations/{id}/items/{item}": d.deleteItem,
	} {
		route(pattern, h)
	}
}

// readTalk reads the body of a request about a conversation. done must be called.
func (d *Door) readTalk(w http.ResponseWriter, req *http.Request) (items []InputItem, metadata map[string]string, done func(), refused *api.Error) {
	data, done, err := d.opt.ReadBody(w, req)
	if err != nil {
		return nil, nil, func() {}, err
	}
	var b conversationBody
	if err := api.Decode(data, &b); err != nil {
		return nil, nil, done, err
	}
	if metadata, err = readMetadata(b.Metadata); err != nil {
		return nil, nil, done, err
	}
	turns, err := readList("items", b.Items)
	for i := range turns {
		items = append(items, turns[i].items()...)
	}
	return items, metadata, done, err
}

// readList reads items of a conversation.
func readList(param string, raw jsontext.Value) (turns []turn, err *api.Error) {
	list, err := elements(param, raw, maxItems)
	if err != nil {
		return nil, err
	}
	for i, raw := range list {
		t, err := readItem(fmt.Sprintf("%s[%d]", param, i), raw)
		if err != nil {
			return nil, err
		}
		turns = append(turns, t)
	}
	return turns, nil
}

func (d *Door) makeTalk(w http.ResponseWriter, req *http.Request) {
	items, metadata, done, err := d.readTalk(w, req)
	defer done()
	var c Conversation
	if err == nil {
		c, err = d.talks.add(d.opt.Owner(req), items, metadata)
	}
	answer(w, c, err)
}

// answer sends a value or an error.
func answer(w http.ResponseWriter, v any, err *api.Error) {
	if err != nil {
		err.Write(w)
		return
	}
	api.WriteJSON(w, http.StatusOK, v)
}

func (d *Door) getTalk(w http.ResponseWriter, req *http.Request) {
	t, err := d.talks.get(d.opt.Owner(req), req.PathValue("id"))
	answer(w, t.wire(), err)
}

func (d *Door) changeTalk(w http.ResponseWriter, req *http.Request) {
	_, metadata, done, err := d.readTalk(w, req)
	defer done()
	var c Conversation
	if err == nil {
		err = d.talks.change(d.opt.Owner(req), req.PathValue("id"), func(t *talk) *api.Error {
			t.Data = metadata
			c = t.wire()
			return nil
		})
	}
	answer(w, c, err)
}

func (d *Door) deleteTalk(w http.ResponseWriter, req *http.Request) {
	id := req.PathValue("id")
	err := d.talks.remove(d.opt.Owner(req), id)
	answer(w, deleted{id, "conversation.deleted", true}, err)
}

func (d *Door) addItems(w http.ResponseWriter, req *http.Request) {
	items, _, done, err := d.readTalk(w, req)
	defer done()
	if err == nil && len(items) == 0 {
		err = api.BadRequest(api.CodeMissing, "items", "'items' is required")
	}
	if err == nil {
		err = d.talks.change(d.opt.Owner(req), req.PathValue("id"), func(t *talk) *api.Error { return t.append(items) })
	}
	if err != nil {
		err.Write(w)
		return
	}
	answer(w, api.List[InputItem]{Object: "list", Data: items, FirstID: &items[0].ID, LastID: &items[len(items)-1].ID}, nil)
}

func (d *Door) listItems(w http.ResponseWriter, req *http.Request) {
	p, err := readItemPage(req.URL.Query())
	var t talk
	if err == nil {
		t, err = d.talks.get(d.opt.Owner(req), req.PathValue("id"))
	}
	if err != nil {
		err.Write(w)
		return
	}
	p.send(w, t.Items)
}

// itemAt returns the place of an item.
func (t *talk) itemAt(id string) (int, *api.Error) {
	at := slices.IndexFunc(t.Items, func(i InputItem) bool { return i.ID == id })
	if at < 0 {
		e := notFound("item_not_found", "the conversation has no item '%s'", api.Clip(id))
		e.Param = "item_id"
		return 0, e
	}
	return at, nil
}

func (d *Door) getItem(w http.ResponseWriter, req *http.Request) {
	var item InputItem
	t, err := d.talks.get(d.opt.Owner(req), req.PathValue("id"))
	if err == nil {
		var at int
		if at, err = t.itemAt(req.PathValue("item")); err == nil {
			item = t.Items[at]
		}
	}
	answer(w, item, err)
}

func (d *Door) deleteItem(w http.ResponseWriter, req *http.Request) {
	var c Conversation
	err := d.talks.change(d.opt.Owner(req), req.PathValue("id"), func(t *talk) *api.Error {
		at, err := t.itemAt(req.PathValue("item"))
		if err != nil {
			return err
		}
		t.bytes -= t.Items[at].weight()
		t.Items = slices.Delete(slices.Clone(t.Items), at, at+1)
		c = t.wire()
		return nil
	})
	answer(w, c, err)
}

// conversationID reads the field conversation of a request: an id, or an object with one.
func conversationID(raw jsontext.Value) (string, *api.Error) {
	const param = "conversation"
	if api.Absent(raw) {
		return "", nil
	}
	var ref struct {
		ID string `json:"id"`
	}
	if raw.Kind() == '"' {
		return ref.ID, api.DecodeAt(param, raw, &ref.ID)
	}
	err := api.DecodeAt(param, raw, &ref)
	if err == nil && ref.ID == "" {
		err = api.BadRequest(api.CodeMissing, "conversation.id", "'conversation.id' is required")
	}
	return ref.ID, err
}

// spoken returns the messages of a conversation, joined by commas.
func (d *Door) spoken(owner, id string) ([]byte, *api.Error) {
	t, err := d.talks.get(owner, id)
	if err != nil {
		return nil, err
	}
	turns, err := readInput(api.Marshal(t.Items))
	if err != nil {
		return nil, err
	}
	return joinTurns(nil, turns), nil
}
