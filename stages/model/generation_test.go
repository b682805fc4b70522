package model

import (
	"errors"
	"reflect"
	"testing"
)

func TestParseGeneration(t *testing.T) {
	tests := []struct {
		text string
		want Generation
	}{
		{`{}`, DefaultGeneration()},
		{`{"do_sample":true,"temperature":0.3,"top_p":0.95,"top_k":20,"min_p":0.1,"repetition_penalty":1.05,"eos_token_id":[5,7]}`,
			Generation{Temperature: 0.3, TopP: 0.95, TopK: 20, MinP: 0.1, RepetitionPenalty: 1.05, EOS: []int32{5, 7}}},
		{`{"temperature":0.7}`, Generation{Temperature: 0.7, TopP: 1, RepetitionPenalty: 1}},
		{`{"do_sample":false,"temperature":0.7}`, Generation{Temperature: 0, TopP: 1, RepetitionPenalty: 1}},
		{`{"top_k":-1,"top_p":null,"max_new_tokens":7,"eos_token_id":3}`,
			Generation{Temperature: 1, TopP: 1, RepetitionPenalty: 1, EOS: []int32{3}}},
	}
	for _, tt := range tests {
		got, err := ParseGeneration([]byte(tt.text))
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, %v; want %+v", tt.text, got, err, tt.want)
		}
	}
}

func TestParseGenerationBroken(t *testing.T) {
	tests := []struct{ text, field string }{
		{`{"temperature":-1}`, "temperature"},
		{`{"temperature":"hot"}`, "temperature"},
		{`{"top_p":0}`, "top_p"},
		{`{"top_p":1.5}`, "top_p"},
		{`{"top_k":-2}`, "top_k"},
		{`{"top_k":1.5}`, "top_k"},
		{`{"min_p":2}`, "min_p"},
		{`{"repetition_penalty":0}`, "repetition_penalty"},
		{`{"do_sample":"yes"}`, "do_sample"},
		{`{"eos_token_id":"</s>"}`, "eos_token_id"},
	}
	for _, tt := range tests {
		_, err := ParseGeneration([]byte(tt.text))
		var field *FieldError
		if !errors.As(err, &field) || field.Field != tt.field {
			t.Errorf("%s: %v, want the field %s named", tt.text, err, tt.field)
		}
	}
	if _, err := ParseGeneration([]byte(`{"top_k":1,"top_k":2}`)); !errors.Is(err, ErrSyntax) {
		t.Errorf("duplicate name: %v", err)
	}
}

func TestStopIDs(t *testing.T) {
	c := &Config{Vocab: 10, EOS: []int32{1}}
	got := c.StopIDs(Generation{EOS: []int32{3, 1, 11}})
	if !reflect.DeepEqual(got, []int32{1, 3}) || len(c.EOS) != 1 {
		t.Errorf("%v, config %v", got, c.EOS)
	}
}
