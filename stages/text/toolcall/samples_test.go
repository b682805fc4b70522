package toolcall

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
)

// sample is a text as a model of a family writes it, and its parts. testdata/answers.jsonl has one in
// each line.
type sample struct {
	Name      string `json:"name"`
	Sign      string `json:"template"` // markers of the family's template
	Inside    bool   `json:"inside"`   // the prompt ends within reasoning
	NoTools   bool   `json:"no_tools"`
	Hermes    bool   `json:"hermes"`
	Text      string `json:"text"`
	Reasoning string `json:"reasoning"`
	Answer    string `json:"answer"`
	Calls     []call `json:"calls"`
}

// call is a call as a client sees it.
type call struct {
	Name string `json:"name"`
	Args string `json:"arguments"`
	ID   string `json:"id"`
}

// testTools are the tools of the samples.
var testTools, _ = os.ReadFile("testdata/tools.json")

var samples = readSamples()

func readSamples() (all []sample) {
	data, err := os.ReadFile("testdata/answers.jsonl")
	if err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(strings.NewReader(string(data)))
	for lines.Scan() {
		var s sample
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			panic(err)
		}
		all = append(all, s)
	}
	return all
}
