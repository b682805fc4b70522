package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

const (
	model     = "test-model"
	plainText = "Two <b>bold</b> words <tool\n "
	ann       = `{"name": "Ann", "age": 7}`
)

// cells is a client of a server that plays recorded answers: see ../matrix/cells.py.
type cells struct {
	openai.Client
	ctx context.Context
	url string
}

func (c *cells) ask(text string, change func(*openai.ChatCompletionNewParams)) (*openai.ChatCompletion, error) {
	p := openai.ChatCompletionNewParams{Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)}}
	if change != nil {
		change(&p)
	}
	return c.Chat.Completions.New(c.ctx, p)
}

func withTools(p *openai.ChatCompletionNewParams) {
	for _, name := range []string{"get_weather", "now"} {
		p.Tools = append(p.Tools, openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
			Name: name, Parameters: shared.FunctionParameters{"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}},
		}))
	}
}

// same is an error if the answer, which an error may replace, is another one.
func same(err error, got, want any) error {
	if err == nil && fmt.Sprint(got) != fmt.Sprint(want) {
		err = fmt.Errorf("got %v, want %v", got, want)
	}
	return err
}

func (c *cells) plain() error {
	r, err := c.ask("plain", nil)
	if err != nil {
		return err
	}
	return same(nil, r.Choices[0].Message.Content, plainText)
}

func (c *cells) stream() error {
	s := c.Chat.Completions.NewStreaming(c.ctx, openai.ChatCompletionNewParams{Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("plain")}})
	text := ""
	for s.Next() {
		if chunk := s.Current(); len(chunk.Choices) > 0 {
			text += chunk.Choices[0].Delta.Content
		}
	}
	return same(s.Err(), text, plainText)
}

func (c *cells) turns() error {
	input := func(text string) responses.ResponseNewParamsInputUnion {
		return responses.ResponseNewParamsInputUnion{OfString: param.NewOpt(text)}
	}
	first, err := c.Responses.New(c.ctx, responses.ResponseNewParams{Model: model, Input: input("plain")})
	if err != nil {
		return err
	}
	second, err := c.Responses.New(c.ctx, responses.ResponseNewParams{Model: model, Input: input("reasoning"), PreviousResponseID: openai.String(first.ID)})
	if err != nil {
		return err
	}
	return same(nil, second.OutputText(), "Yes.")
}

func (c *cells) tools() error {
	r, err := c.ask("glm 4.7", withTools)
	if err != nil {
		return err
	}
	m := r.Choices[0].Message
	r, err = c.ask("x", func(p *openai.ChatCompletionNewParams) {
		withTools(p)
		p.Messages = append(p.Messages, m.ToParam(), openai.ToolMessage("sunny", m.ToolCalls[0].ID))
	})
	if err != nil {
		return err
	}
	return same(nil, m.ToolCalls[0].Function.Name+" "+r.Choices[0].Message.Content, "get_weather Done: sunny")
}

func (c *cells) parallel() error {
	r, err := c.ask("hermes", withTools)
	if err != nil {
		return err
	}
	return same(nil, len(r.Choices[0].Message.ToolCalls), 2)
}

func (c *cells) schema() error {
	r, err := c.ask("Repeat: "+ann, func(p *openai.ChatCompletionNewParams) {
		p.ResponseFormat = openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONSchema: &shared.ResponseFormatJSONSchemaParam{JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{
			Name: "person", Schema: map[string]any{"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}, "age": map[string]any{"type": "integer"}}},
		}}}
	})
	if err != nil {
		return err
	}
	return same(nil, r.Choices[0].Message.Content, ann)
}

func (c *cells) reasoning() error {
	r, err := c.ask("reasoning", nil)
	if err != nil {
		return err
	}
	return same(nil, r.Choices[0].Message.JSON.ExtraFields["reasoning_content"].Raw(), `"Is it 2 < 3?"`)
}

func (c *cells) cancel() error {
	ctx, cancel := context.WithCancel(c.ctx)
	s := c.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("forever")}})
	s.Next()
	cancel()
	s.Close()
	for range 100 {
		res, err := http.Get(c.url + "/test/open")
		if err != nil {
			return err
		}
		data, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || string(data) == "0" {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return errors.New("the server goes on after the client has left")
}

func (c *cells) usage() error {
	r, err := c.ask("reasoning", nil)
	if err == nil && r.Usage.CompletionTokensDetails.ReasoningTokens == 0 {
		err = errors.New("no tokens of reasoning")
	}
	return err
}

// TestCells prints a line for each feature; ../matrix.sh runs it.
func TestCells(t *testing.T) {
	url := os.Getenv("KRATER_URL")
	if res, err := http.Get(url + "/test/open"); err != nil || res.StatusCode != http.StatusOK {
		t.Skip("the server plays no recorded answers")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := &cells{openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0)), ctx, url}
	for _, f := range []struct {
		feature string
		try     func() error
	}{
		{"plain", c.plain}, {"stream", c.stream}, {"multi-turn", c.turns}, {"tools", c.tools}, {"parallel tools", c.parallel},
		{"JSON schema", c.schema}, {"reasoning", c.reasoning}, {"cancel", c.cancel}, {"usage", c.usage},
	} {
		line := map[string]string{"client": "openai-go", "version": "3.98.0", "feature": f.feature, "result": "ok"}
		if err := f.try(); err != nil {
			line["result"], line["note"] = "failed", err.Error()
			if refusal, ok := errors.AsType[*openai.Error](err); ok && refusal.StatusCode == 400 && strings.Contains(refusal.RawJSON(), "not supported") {
				line["result"] = "refused"
			} else {
				t.Errorf("%s: %v", f.feature, err)
			}
		}
		data, err := json.Marshal(line)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("CELL %s\n", data)
	}
}
