package anthropic

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json/jsontext"
	"hash"
	"strings"

	"krater/actors/engine"
	"krater/transport/api"
)

// Message is an answer.
type Message struct {
	ID           string  `json:"id"`
	Type         string  `json:"type"` // message
	Role         string  `json:"role"` // assistant
	Model        string  `json:"model"`
	Content      []Block `json:"content"`
	StopReason   *string `json:"stop_reason"`
	StopSequence *string `json:"stop_sequence"`
	Usage        Usage   `json:"usage"`
}

// Block is a part of a message: text, thinking or tool_use.
type Block struct {
	Type      string         `json:"type"`
	Text      *string        `json:"text,omitzero"`
	Thinking  *string        `json:"thinking,omitzero"`
	Signature *string        `json:"signature,omitzero"`
	ID        string         `json:"id,omitempty"`
	Name      string         `json:"name,omitempty"`
	Input     jsontext.Value `json:"input,omitzero"` // an object
}

// Usage counts tokens. The prompt has the sum of the three input counts.
type Usage struct {
	Input         int           `json:"input_tokens"`
	CacheCreation int           `json:"cache_creation_input_tokens"` // 0: what a prompt leaves in the cache is not told from it
	CacheRead     int           `json:"cache_read_input_tokens"`
	Output        int           `json:"output_tokens"`
	Details       OutputDetails `json:"output_tokens_details"`
	ServiceTier   string        `json:"service_tier,omitempty"` // standard; in messages only
}

// OutputDetails counts parts of the output.
type OutputDetails struct {
	Thinking int `json:"thinking_tokens"`
}

// NewUsage returns the wire form of u.
func NewUsage(u engine.Usage) Usage {
	return Usage{Input: u.Prompt - u.Cached, CacheRead: u.Cached, Output: u.Completion, Details: OutputDetails{u.Reasoning}}
}

// Event is an event of a stream; its Type is the event's name, too.
type Event struct {
	Type    string   `json:"type"`
	Message *Message `json:"message,omitzero"`
	Index   *int     `json:"index,omitzero"`
	Block   *Block   `json:"content_block,omitzero"`
	Delta   any      `json:"delta,omitzero"`
	Usage   *Usage   `json:"usage,omitzero"`
}

// delta is a piece of a block.
type delta struct {
	Type        string  `json:"type"`
	Text        *string `json:"text,omitzero"`
	PartialJSON *string `json:"partial_json,omitzero"`
	Thinking    *string `json:"thinking,omitzero"`
	Signature   *string `json:"signature,omitzero"`
}

// end is the delta of a message_delta.
type end struct {
	StopReason   *string `json:"stop_reason"`
	StopSequence *string `json:"stop_sequence"`
}

// Answer turns the events of an engine into a message or into the events of a stream.
type Answer struct {
	// Hide leaves the reasoning out.
	Hide bool

	message  Message
	emit     func(Event)     // nil: the message is wanted as a whole
	text     strings.Builder // of the open block, of a whole message
	thoughts hash.Hash       // of the open block's reasoning
	begun    bool            // message_start has been sent
	pinged   bool
	open     bool // the last block is not complete
	calls    int
}

// NewAnswer makes an answer of this id by the model. emit gets the events of a stream; nil collects
// the message.
func NewAnswer(id, model string, emit func(Event)) *Answer {
	return &Answer{emit: emit, message: Message{ID: id, Type: "message", Role: "assistant", Model: model, Content: []Block{}}}
}

// Begin sends message_start, once. u has the counts known so far.
func (a *Answer) Begin(u engine.Usage) {
	if a.emit == nil || a.begun {
		return
	}
	a.begun = true
	m := a.message
	m.Usage = NewUsage(u)
	m.Usage.ServiceTier = "standard"
	a.emit(Event{Type: "message_start", Message: &m})
}

// Ping sends a ping, which shows that the server is alive.
func (a *Answer) Ping() {
	if a.emit != nil {
		a.pinged = true
		a.emit(Event{Type: "ping"})
	}
}

// Add adds an event of the answer: Tokens or Done.
func (a *Answer) Add(e *engine.Event) {
	a.Begin(e.Usage)
	switch e.Part {
	case engine.ReasoningPart:
		if !a.Hide {
			a.piece("thinking", e.Text)
		}
	case engine.CallPart:
		a.close()
		id := e.CallID
		if id == "" {
			id = api.NewID("toolu_")
		}
		a.calls++
		a.start(Block{Type: "tool_use", ID: id, Name: e.Name, Input: jsontext.Value("{}")})
	case engine.ArgumentsPart:
		a.add(e.Text)
	default:
		a.piece("text", e.Text)
	}
	if e.Kind == engine.Done {
		a.finish(e)
	}
}

// kind returns the type of the open block.
func (a *Answer) kind() string {
	if !a.open {
		return ""
	}
	return a.message.Content[len(a.message.Content)-1].Type
}

// piece adds text to a block of that kind, which it opens if need be.
func (a *Answer) piece(kind, text string) {
	if text == "" {
		return
	}
	if a.kind() != kind {
		a.close()
		empty, block := "", Block{Type: kind}
		if kind == "text" {
			block.Text = &empty
		} else {
			block.Thinking, block.Signature, a.thoughts = &empty, &empty, sha256.New()
		}
		a.start(block)
	}
	a.add(text)
}

// start opens a block.
func (a *Answer) start(b Block) {
	a.message.Content, a.open = append(a.message.Content, b), true
	if a.emit == nil {
		return
	}
	a.send(Event{Type: "content_block_start", Block: &b})
	if !a.pinged {
		a.Ping()
	}
}

// send sends an event about the last block.
func (a *Answer) send(e Event) {
	index := len(a.message.Content) - 1
	e.Index = &index
	a.emit(e)
}

// add adds text to the open block.
func (a *Answer) add(text string) {
	kind := a.kind()
	if kind == "thinking" {
		_, _ = a.thoughts.Write([]byte(text)) // a hash takes everything
	}
	if a.emit == nil {
		a.text.WriteString(text)
		return
	}
	var d delta
	switch kind {
	case "text":
		d = delta{Type: "text_delta", Text: &text}
	case "thinking":
		d = delta{Type: "thinking_delta", Thinking: &text}
	case "tool_use":
		d = delta{Type: "input_json_delta", PartialJSON: &text}
	default:
		return
	}
	a.send(Event{Type: "content_block_delta", Delta: d})
}

// close completes the open block.
func (a *Answer) close() {
	if !a.open {
		return
	}
	last := &a.message.Content[len(a.message.Content)-1]
	text := a.text.String()
	a.text.Reset()
	switch last.Type {
	case "text":
		last.Text = &text
	case "thinking":
		signature := base64.StdEncoding.EncodeToString(a.thoughts.Sum(nil))
		last.Thinking, last.Signature = &text, &signature
		if a.emit != nil {
			a.send(Event{Type: "content_block_delta", Delta: delta{Type: "signature_delta", Signature: &signature}})
		}
	case "tool_use":
		if input := jsontext.Value(text); input.Kind() == '{' && input.IsValid() {
			last.Input = input
		}
	}
	if a.emit != nil {
		a.send(Event{Type: "content_block_stop"})
	}
	a.open = false
}

// finish ends the answer.
func (a *Answer) finish(e *engine.Event) {
	a.close()
	reason := "end_turn"
	m := &a.message
	switch {
	case e.Finish == engine.FinishLength:
		reason = "max_tokens"
	case e.StopMatched != "":
		reason, m.StopSequence = "stop_sequence", &e.StopMatched
	case a.calls > 0:
		reason = "tool_use"
	}
	m.StopReason, m.Usage = &reason, NewUsage(e.Usage)
	if a.emit != nil {
		a.emit(Event{Type: "message_delta", Delta: end{m.StopReason, m.StopSequence}, Usage: &m.Usage})
		a.emit(Event{Type: "message_stop"})
		return
	}
	m.Usage.ServiceTier = "standard"
}

// Message returns the whole answer.
func (a *Answer) Message() *Message { return &a.message }

// Count is the answer of POST /v1/messages/count_tokens.
type Count struct {
	Input int `json:"input_tokens"`
}
