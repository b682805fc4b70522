package client

import (
	"testing"

	"krater/actors/engine"
	"krater/transport/server"
)

func TestMetrics(t *testing.T) {
	e, c := pair(t, server.Options{}, "")
	e.SetStats(engine.Stats{Running: 2, ActorQueue: map[string]int{"group:0": 4, "a b}": 3}, Finished: map[string]uint64{"stop": 5}})
	m, err := c.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if m["krater:num_requests_running"] != 2 || m[`krater:request_success{finished_reason="stop"}`] != 5 || m[`krater:actor_queue_depth{actor="a b}"}`] != 3 {
		t.Errorf("%v", m)
	}
	if sum, found := m.Sum("krater:actor_queue_depth"); sum != 7 || !found {
		t.Errorf("%v %v", sum, found)
	}
	if _, found := m.Sum("krater:actor_queue"); found {
		t.Error("a part of a name is no name")
	}
	if m["go_goroutines"] < 1 || m["process_open_fds"] < 1 {
		t.Error("no figures of the process")
	}
}

func TestMetricsText(t *testing.T) {
	m, err := parseMetrics([]byte("# HELP a b\na 1 1700000000\n\nb{x=\"} \"} 2.5e3\nc +Inf\n"))
	if err != nil || len(m) != 3 || m["a"] != 1 || m["b{x=\"} \"}"] != 2500 || m["c"] < 1e300 {
		t.Errorf("%v %v", m, err)
	}
	for _, text := range []string{"a", "a ", "a b", "a{b=\"c\" 1", "{} "} {
		if m, err := parseMetrics([]byte(text)); err == nil {
			t.Errorf("%q is read as %v", text, m)
		}
	}
}
