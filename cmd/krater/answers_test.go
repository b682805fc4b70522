package main

import (
	"context"
	"testing"
)

// reply asks one question and fails the test without an answer.
func (s *site) reply(t testing.TB, r route, q question) reply {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	got, err := r.ask(ctx, s, q, idle)
	if err != nil {
		t.Fatalf("%s: %v", r.name, err)
	}
	return got
}

const lighthouse = "What is a lighthouse?"

func TestEveryRouteGivesTheSame(t *testing.T) {
	s := open(t)
	for _, r := range routes {
		got := s.reply(t, r, greedy(lighthouse, 40))
		t.Log(r.name, got, got.deltas)
	}
}
