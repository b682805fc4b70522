// Package client holds the official Go client against a running server, whose address is in
// KRATER_URL.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
)

const question = "What is a lighthouse?"

// maxTokens bounds the answers.
const maxTokens = 24

func newClient(t *testing.T) (openai.Client, context.Context, string) {
	t.Helper()
	url := os.Getenv("KRATER_URL")
	if url == "" {
		t.Fatal("KRATER_URL is not set")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	client := openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
	models, err := client.Models.List(ctx)
	if err != nil || len(models.Data) == 0 {
		t.Fatalf("the models: %v, %v", models, err)
	}
	return client, ctx, models.Data[0].ID
}

func TestChatStream(t *testing.T) {
	client, ctx, model := newClient(t)
	stream := client.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{
		Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(question)},
		Temperature: openai.Float(0), MaxCompletionTokens: openai.Int(maxTokens),
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	})
	var acc openai.ChatCompletionAccumulator
	text, reasons, usages := "", 0, 0
	for stream.Next() {
		chunk := stream.Current()
		if !acc.AddChunk(chunk) {
			t.Fatalf("the accumulator refuses %s", chunk.RawJSON())
		}
		if chunk.JSON.Usage.Valid() {
			usages++
		}
		for _, c := range chunk.Choices {
			text += c.Delta.Content
			if c.FinishReason != "" {
				reasons++
			}
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if text == "" || acc.Choices[0].Message.Content != text || reasons != 1 || usages != 1 || acc.Usage.CompletionTokens == 0 {
		t.Errorf("text %q (accumulated %q), %d finish reasons, %d usages, %d tokens", text, acc.Choices[0].Message.Content, reasons, usages, acc.Usage.CompletionTokens)
	}
	whole, err := client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
		Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(question)},
		Temperature: openai.Float(0), MaxCompletionTokens: openai.Int(maxTokens),
	})
	if err != nil || whole.Choices[0].Message.Content != text {
		t.Errorf("without a stream: %v, %v, want %q", whole, err, text)
	}
}

func request(model string) responses.ResponseNewParams {
	return responses.ResponseNewParams{
		Model: model, Temperature: openai.Float(0), MaxOutputTokens: openai.Int(maxTokens),
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(question)},
	}
}

func TestResponsesStream(t *testing.T) {
	client, ctx, model := newClient(t)
	stream := client.Responses.NewStreaming(ctx, request(model))
	text, last := "", int64(-1)
	var end responses.Response
	for stream.Next() {
		event := stream.Current()
		if event.AsAny() == nil {
			t.Fatalf("the client does not know %s", event.RawJSON())
		}
		if event.SequenceNumber <= last {
			t.Errorf("event %d after %d", event.SequenceNumber, last)
		}
		last = event.SequenceNumber
		switch event.Type {
		case "response.output_text.delta":
			text += event.Delta
		case "response.completed", "response.incomplete", "response.failed":
			end = event.Response
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	checkEnd(t, &end, text)

	got, err := client.Responses.Get(ctx, end.ID, responses.ResponseGetParams{})
	if err != nil || got.OutputText() != text {
		t.Fatalf("GET: %v, %v", got, err)
	}
	replay := client.Responses.GetStreaming(ctx, end.ID, responses.ResponseGetParams{StartingAfter: openai.Int(last - 1)})
	if !replay.Next() || replay.Current().Response.ID != end.ID || replay.Next() || replay.Err() != nil {
		t.Errorf("the replay of the last event: %v", replay.Err())
	}
	next := request(model)
	next.PreviousResponseID = openai.String(end.ID)
	whole, err := client.Responses.New(ctx, next)
	if err != nil || whole.PreviousResponseID != end.ID || whole.Usage.InputTokens <= end.Usage.InputTokens {
		t.Errorf("the next turn: %v, %v", whole, err)
	}
	if err := client.Responses.Delete(ctx, end.ID); err != nil {
		t.Error(err)
	}
	var refused *openai.Error
	if _, err := client.Responses.Get(ctx, end.ID, responses.ResponseGetParams{}); !errors.As(err, &refused) || refused.StatusCode != 404 {
		t.Errorf("GET after DELETE: %v", err)
	}
}

// checkEnd checks a final response against the deltas that came before.
func checkEnd(t *testing.T, r *responses.Response, text string) {
	t.Helper()
	if text == "" || r.OutputText() != text {
		t.Errorf("the text is %q, the deltas say %q", r.OutputText(), text)
	}
	if r.Usage.OutputTokens == 0 || r.Usage.TotalTokens != r.Usage.InputTokens+r.Usage.OutputTokens {
		t.Errorf("the usage is %s", r.Usage.RawJSON())
	}
	if r.Status == "incomplete" && r.IncompleteDetails.Reason != "max_output_tokens" || r.Status != "incomplete" && r.Status != "completed" {
		t.Errorf("the status is %s, %s", r.Status, r.IncompleteDetails.Reason)
	}
}

func connect(t *testing.T, client *openai.Client, ctx context.Context) *responses.ResponseConnection {
	t.Helper()
	conn, err := client.Responses.Connect(ctx, responses.ResponseConnectionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Abort)
	return conn
}

func create(model, text string) responses.ResponsesClientEventResponseCreateParam {
	return responses.ResponsesClientEventResponseCreateParam{
		Model: model, Temperature: openai.Float(0), MaxOutputTokens: openai.Int(maxTokens), Store: openai.Bool(false),
		Input: responses.ResponsesClientEventResponseCreateInputUnionParam{OfString: openai.String(text)},
	}
}

func TestWebSocket(t *testing.T) {
	client, ctx, model := newClient(t)
	conn := connect(t, &client, ctx)
	if err := conn.Create(ctx, create(model, question)); err != nil {
		t.Fatal(err)
	}
	var acc responses.ResponseAccumulator
	text := ""
	var end responses.Response
	for end.ID == "" {
		event, err := conn.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if event.AsAny() == nil {
			t.Fatalf("the client does not know %s", event.RawJSON())
		}
		if err := acc.AddEvent(event); err != nil {
			t.Fatalf("the accumulator refuses %s: %v", event.RawJSON(), err)
		}
		var plain struct {
			Type, Delta string
			Response    *responses.Response
		}
		if err := json.Unmarshal([]byte(event.RawJSON()), &plain); err != nil {
			t.Fatal(err)
		}
		text += plain.Delta
		switch plain.Type {
		case "error":
			t.Fatalf("got %s", event.RawJSON())
		case "response.completed", "response.incomplete", "response.failed":
			end = *plain.Response
		}
	}
	checkEnd(t, &end, text)
	if s := acc.Snapshot(); len(s.Output) != 1 || s.Output[0].Text[0] != text {
		t.Errorf("the accumulator has %+v", s)
	}
	overHTTP, err := client.Responses.New(ctx, request(model))
	if err != nil || overHTTP.OutputText() != text {
		t.Errorf("over HTTP the answer is %v, %v, want %q", overHTTP, err, text)
	}
	// The conversation goes on with store: false.
	next := create(model, "And who keeps it?")
	next.PreviousResponseID = openai.String(end.ID)
	if err := conn.Create(ctx, next); err != nil {
		t.Fatal(err)
	}
	second, err := conn.FinalResponse(ctx)
	if err != nil || second.OutputText() == "" || second.Usage.InputTokens <= end.Usage.InputTokens {
		t.Errorf("the second turn: %v, %v", second, err)
	}
	if err := conn.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestWebSocketLanes(t *testing.T) {
	client, ctx, model := newClient(t)
	conn := connect(t, &client, ctx)
	alone, err := client.Responses.New(ctx, request(model))
	if err != nil {
		t.Fatal(err)
	}
	lanes := make([]*responses.ResponseLane, 4)
	for i := range lanes {
		id := fmt.Sprintf("lane-%d", i)
		if lanes[i], err = conn.Lane(id); err != nil {
			t.Fatal(err)
		}
		ask := create(model, question)
		ask.StreamID = openai.String(id)
		if err := conn.Create(ctx, ask); err != nil {
			t.Fatal(err)
		}
	}
	for i, lane := range lanes {
		r, err := lane.FinalResponse(ctx)
		if err != nil || r.OutputText() != alone.OutputText() {
			t.Errorf("lane %d: %v, %v, want %q", i, r, err, alone.OutputText())
		}
	}
}

func TestWebSocketErrors(t *testing.T) {
	client, ctx, model := newClient(t)
	conn := connect(t, &client, ctx)
	if err := conn.Create(ctx, create("no-such-model", question)); err != nil {
		t.Fatal(err)
	}
	var refused *responses.ResponseProtocolError
	if _, err := conn.FinalResponse(ctx); !errors.As(err, &refused) || !strings.Contains(refused.Event.RawJSON(), "model_not_found") {
		t.Errorf("an unknown model gives %v", err)
	}
	// A warm-up, then the turn that goes on with it.
	warm := create(model, question)
	warm.Generate = openai.Bool(false)
	if err := conn.Create(ctx, warm); err != nil {
		t.Fatal(err)
	}
	ready, err := conn.FinalResponse(ctx)
	if err != nil || ready.Status != "completed" || len(ready.Output) != 0 {
		t.Fatalf("the warm-up gives %v, %v", ready, err)
	}
	turn := create(model, "")
	turn.Input = responses.ResponsesClientEventResponseCreateInputUnionParam{OfResponse: &responses.ResponseInputParam{}}
	turn.PreviousResponseID = param.NewOpt(ready.ID)
	if err := conn.Create(ctx, turn); err != nil {
		t.Fatal(err)
	}
	if r, err := conn.FinalResponse(ctx); err != nil || r.OutputText() == "" {
		t.Errorf("after the warm-up: %v, %v", r, err)
	}
	// A cancelled answer ends as incomplete.
	long := create(model, question)
	long.MaxOutputTokens = openai.Int(1000)
	long.SetExtraFields(map[string]any{"ignore_eos": true})
	if err := conn.Create(ctx, long); err != nil {
		t.Fatal(err)
	}
	if err := conn.SendRaw(ctx, json.RawMessage(`{"type":"response.cancel"}`)); err != nil {
		t.Fatal(err)
	}
	if r, err := conn.FinalResponse(ctx); err != nil || r.Status != "incomplete" || r.IncompleteDetails.Reason != "cancelled" {
		t.Errorf("the cancelled answer: %v, %v", r, err)
	}
}
