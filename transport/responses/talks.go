package responses

import (
	"slices"
	"sync"
	"time"

	"krater/transport/api"
)

// Limits of conversations, which are kept in memory.
const (
	maxTalks     = 4096
	maxTalkBytes = 8 << 20  // of one
	maxTalksSum  = 64 << 20 // of all
	talkLife     = 30 * 24 * time.Hour
)

// talk is a conversation of the Conversations API: items that responses are made of and add to.
type talk struct {
	id, owner string
	created   time.Time
	used      time.Time
	metadata  map[string]string
	items     []InputItem
	bytes     int
}

// talks keeps conversations. Beyond its limits it drops the one of its largest owner that was not used
// for the longest time.
type talks struct {
	mu    sync.Mutex
	byID  map[string]*talk
	bytes int
}

func newTalks() *talks { return &talks{byID: map[string]*talk{}} }

// add makes a conversation.
func (s *talks) add(owner string, items []InputItem, metadata map[string]string) (Conversation, *api.Error) {
	t := &talk{id: api.NewID("conv_"), owner: owner, created: time.Now(), used: time.Now(), metadata: metadata}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.append(t, items); err != nil {
		return Conversation{}, err
	}
	s.byID[t.id] = t
	s.trim()
	return t.wire(), nil
}

// append adds items, with new ids, and counts them; s.mu is held.
func (s *talks) append(t *talk, items []InputItem) *api.Error {
	bytes := 0
	for i := range items {
		items[i].ID = api.NewID(prefixes[items[i].Type])
		bytes += items[i].weight()
	}
	if t.bytes+bytes > maxTalkBytes {
		return api.Invalid("items", "the conversation would have %d bytes, the limit is %d", t.bytes+bytes, maxTalkBytes)
	}
	t.items, t.bytes = append(t.items, items...), t.bytes+bytes
	s.bytes += bytes
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

// with calls f with the owner's conversation.
func (s *talks) with(owner, id string, f func(*talk) *api.Error) *api.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trim()
	t := s.byID[id]
	if t == nil || t.owner != owner {
		e := notFound("conversation_not_found", "there is no conversation '%s'", api.Clip(id))
		e.Param = "conversation_id"
		return e
	}
	t.used = time.Now()
	return f(t)
}

// items returns a copy of a conversation's items.
func (s *talks) items(owner, id string) (items []InputItem, err *api.Error) {
	err = s.with(owner, id, func(t *talk) *api.Error {
		items = slices.Clone(t.items)
		return nil
	})
	return items, err
}

// grow adds the items of a response to its conversation, which may be gone or full by now: then it
// stays as it is.
func (s *talks) grow(owner, id string, items []InputItem) {
	_ = s.with(owner, id, func(t *talk) *api.Error {
		err := s.append(t, items)
		s.trim()
		return err
	})
}

// drop forgets a conversation; s.mu is held.
func (s *talks) drop(t *talk) {
	delete(s.byID, t.id)
	s.bytes -= t.bytes
}

// trim drops what is too old or too much; s.mu is held.
func (s *talks) trim() {
	limit := time.Now().Add(-talkLife)
	held := map[string]int{}
	for _, t := range s.byID {
		if t.used.Before(limit) {
			s.drop(t)
			continue
		}
		held[t.owner] += t.bytes + 1
	}
	for len(s.byID) > maxTalks || s.bytes > maxTalksSum {
		var oldest *talk
		for _, t := range s.byID {
			if oldest == nil || held[t.owner] > held[oldest.owner] || held[t.owner] == held[oldest.owner] && t.used.Before(oldest.used) {
				oldest = t
			}
		}
		held[oldest.owner] -= oldest.bytes + 1
		s.drop(oldest)
	}
}

// Conversation is a conversation as clients see it.
type Conversation struct {
	ID        string            `json:"id"`
	Object    string            `json:"object"` // conversation
	CreatedAt int64             `json:"created_at"`
	Metadata  map[string]string `json:"metadata"`
}

// wire returns what clients see; the conversations' lock is held.
func (t *talk) wire() Conversation {
	return Conversation{ID: t.id, Object: "conversation", CreatedAt: t.created.Unix(), Metadata: t.metadata}
}
