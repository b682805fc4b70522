package responses

import (
	"encoding/json/v2"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"krater/transport/api"
)

// Limits of conversations.
const (
	maxTalks     = 4096
	maxTalkBytes = 8 << 20  // of one
	maxTalksSum  = 64 << 20 // of all
	talkLife     = 30 * 24 * time.Hour
)

// talk is a conversation of the Conversations API: items that responses are made of and add to. But for Used it is replaced, not changed.
type talk struct {
	id      string
	Owner   string            `json:"owner,omitempty"`
	Created time.Time         `json:"created"`
	Used    time.Time         `json:"used"`
	Data    map[string]string `json:"metadata,omitempty"`
	Items   []InputItem       `json:"items,omitempty"`
	bytes   int
}

// Records is where conversations outlive the process.
type Records interface {
	// SaveRecords makes changes durable before it returns, all or none of them: each name gets a new value, or with nil it goes.
	SaveRecords(changes map[string][]byte) error
	// Records calls f with everything that is saved.
	Records(f func(name string, value []byte) error) error
}

// talks keeps conversations. Beyond its limits it drops the one of its largest owner that was not used
// for the longest time.
type talks struct {
	log zerolog.Logger

	mu      sync.Mutex
	byID    map[string]*talk
	bytes   int
	records Records // nil: they end with the process
}

func newTalks(log zerolog.Logger) *talks { return &talks{log: log, byID: map[string]*talk{}} }

// talkPrefix is that of ids.
const talkPrefix = "conv_"

// load reads the conversations that are saved, and saves those that are made from now on. One that cannot be read is left alone.
func (s *talks) load(from Records) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := from.Records(func(name string, value []byte) error {
		if !strings.HasPrefix(name, talkPrefix) {
			return nil
		}
		t := &talk{id: name}
		if err := json.Unmarshal(value, t); err != nil {
			s.log.Warn().Str("conversation", name).Err(err).Msg("a conversation cannot be read")
			return nil
		}
		for i := range t.Items {
			t.bytes += t.Items[i].weight()
		}
		s.byID[name] = t
		s.bytes += t.bytes
		return nil
	})
	if err != nil {
		return fmt.Errorf("conversations: %w", err)
	}
	s.records = from
	s.trim()
	return nil
}

// save makes changes durable: of conversations, nil for one that goes. s.mu is held.
func (s *talks) save(changes map[string]*talk) error {
	if s.records == nil || len(changes) == 0 {
		return nil
	}
	values := make(map[string][]byte, len(changes))
	for id, t := range changes {
		if values[id] = nil; t != nil {
			values[id] = api.Marshal(t)
		}
	}
	return s.records.SaveRecords(values)
}

// commit puts a conversation in the place of the one with its id, if there is one, once it is saved. s.mu is held.
func (s *talks) commit(t *talk) *api.Error {
	if err := s.save(map[string]*talk{t.id: t}); err != nil {
		s.log.Error().Str("conversation", t.id).Err(err).Msg("a conversation was not saved")
		return unsaved("the conversation cannot be saved; it is as before")
	}
	if old := s.byID[t.id]; old != nil {
		s.bytes -= old.bytes
	}
	s.byID[t.id] = t
	s.bytes += t.bytes
	s.trim()
	return nil
}

func unsaved(message string) *api.Error {
	return &api.Error{Status: http.StatusServiceUnavailable, Type: api.TypeServer, Code: api.CodeUnavailable, Message: message}
}

// add makes a conversation.
func (s *talks) add(owner string, items []InputItem, metadata map[string]string) (Conversation, *api.Error) {
	now := time.Now()
	t := &talk{id: api.NewID(talkPrefix), Owner: owner, Created: now, Used: now, Data: metadata}
	if err := t.append(items); err != nil {
		return Conversation{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.commit(t); err != nil {
		return Conversation{}, err
	}
	return t.wire(), nil
}

// append adds items, with new ids, and counts them.
func (t *talk) append(items []InputItem) *api.Error {
	bytes := 0
	for i := range items {
		items[i].ID = api.NewID(prefixes[items[i].Type])
		bytes += items[i].weight()
	}
	if t.bytes+bytes > maxTalkBytes {
		return api.Invalid("items", "the conversation would have %d bytes, the limit is %d", t.bytes+bytes, maxTalkBytes)
	}
	t.Items, t.bytes = slices.Concat(t.Items, items), t.bytes+bytes
	return nil
}

// weight returns the bytes that an item takes, roughly.
func (i *InputItem) weight() int {
	const object = 256
	n := object + len(i.CallID) + len(i.Name)
	for _, text := range []*string{i.Arguments, i.Output} {
		if text != nil {
			n += len(*text)
		}
	}
	for _, p := range i.Content {
		n += len(p.Text)
	}
	return n
}

// find returns the owner's conversation; s.mu is held.
func (s *talks) find(owner, id string) (*talk, *api.Error) {
	s.trim()
	t := s.byID[id]
	if t == nil || t.Owner != owner {
		e := notFound("conversation_not_found", "there is no conversation '%s'", api.Clip(id))
		e.Param = "conversation_id"
		return nil, e
	}
	t.Used = time.Now()
	return t, nil
}

// get returns the owner's conversation. Its items do not change.
func (s *talks) get(owner, id string) (talk, *api.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.find(owner, id)
	if err != nil {
		return talk{}, err
	}
	return *t, nil
}

// change calls f with a copy of the owner's conversation, which is then the conversation. f replaces the items.
func (s *talks) change(owner, id string, f func(*talk) *api.Error) *api.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, err := s.find(owner, id)
	if err != nil {
		return err
	}
	t := *old
	if err := f(&t); err != nil {
		return err
	}
	return s.commit(&t)
}

// remove forgets the owner's conversation.
func (s *talks) remove(owner, id string) *api.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.find(owner, id)
	if err != nil {
		return err
	}
	if err := s.save(map[string]*talk{id: nil}); err != nil {
		s.log.Error().Str("conversation", id).Err(err).Msg("a conversation was not removed")
		return unsaved("the conversation cannot be removed; it is as before")
	}
	s.drop(t)
	return nil
}

// grow adds the items of a response to its conversation, which may be gone or full by now: then it
// stays as it is.
func (s *talks) grow(owner, id string, items []InputItem) {
	_ = s.change(owner, id, func(t *talk) *api.Error { return t.append(items) })
}

// drop forgets a conversation; s.mu is held.
func (s *talks) drop(t *talk) {
	delete(s.byID, t.id)
	s.bytes -= t.bytes
}

// trim drops what is too old or too much; s.mu is held.
func (s *talks) trim() {
	limit := time.Now().Add(-talkLife)
	held, gone := map[string]int{}, map[string]*talk{}
	drop := func(t *talk) {
		s.drop(t)
		gone[t.id] = nil
	}
	for _, t := range s.byID {
		if t.Used.Before(limit) {
			drop(t)
			continue
		}
		held[t.Owner] += t.bytes + 1
	}
	for len(s.byID) > maxTalks || s.bytes > maxTalksSum {
		var oldest *talk
		for _, t := range s.byID {
			if oldest == nil || held[t.Owner] > held[oldest.Owner] || held[t.Owner] == held[oldest.Owner] && t.Used.Before(oldest.Used) {
				oldest = t
			}
		}
		held[oldest.Owner] -= oldest.bytes + 1
		drop(oldest)
	}
	if err := s.save(gone); err != nil { // the next start drops them
		s.log.Warn().Err(err).Int("conversations", len(gone)).Msg("conversations that are too old or too many were not removed")
	}
}

// Conversation is a conversation as clients see it.
type Conversation struct {
	ID        string            `json:"id"`
	Object    string            `json:"object"` // conversation
	CreatedAt int64             `json:"created_at"`
	Metadata  map[string]string `json:"metadata"`
}

// wire returns what clients see.
func (t *talk) wire() Conversation {
	return Conversation{ID: t.id, Object: "conversation", CreatedAt: t.Created.Unix(), Metadata: t.Data}
}
