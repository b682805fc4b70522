package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// TestAnswer: the program answers as the reference does.
func TestAnswer(t *testing.T) {
	const model = "../../models/krater-tiny"
	data, err := os.ReadFile(model + "/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Prompts []struct {
			Messages []struct{ Content string }
			Answer   string
		}
	}
	if err := json.Unmarshal(data, &golden); err != nil || len(golden.Prompts) == 0 {
		t.Fatal(len(golden.Prompts), err)
	}
	p := golden.Prompts[0]
	var out strings.Builder
	if err := answer(&out, model, p.Messages[0].Content); err != nil {
		t.Fatal(err)
	}
	if out.String() != p.Answer || p.Answer == "" {
		t.Errorf("it says %q, want %q", &out, p.Answer)
	}
	if err := answer(&out, t.TempDir(), "?"); err == nil || !strings.Contains(err.Error(), "there is no config.json") {
		t.Errorf("a folder without a model: %v", err)
	}
}
