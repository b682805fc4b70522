// Command embed answers a question with a model in its own process.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"krater/actors/engine"
	"krater/actors/local"
)

func main() {
	if err := answer(os.Stdout, "models/krater-tiny", "What is a lighthouse?"); err != nil {
		log.Fatal(err)
	}
}

// answer loads the model of a folder and writes what it says.
func answer(out io.Writer, model, question string) error {
	ctx := context.Background()
	e, err := local.Open(ctx, local.Config{Model: model})
	if err != nil {
		return err
	}
	defer e.Close()
	chat := &engine.Chat{Messages: fmt.Appendf(nil, `[{"role":"user","content":%q}]`, question)}
	stream, err := e.Submit(ctx, &engine.Request{Prompt: engine.Prompt{Chat: chat}, Sampling: engine.Sampling{TopP: 1, RepetitionPenalty: 1}, Logprobs: -1})
	if err != nil {
		return err
	}
	defer stream.Close()
	for {
		switch event, err := stream.Next(ctx); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case event.Kind == engine.Failed:
			return event.Err
		default:
			fmt.Fprint(out, event.Text)
		}
	}
}
