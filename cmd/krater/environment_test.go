package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
)

// TestUnknownVariables: variables that look like settings are reported, with the setting that was meant.
func TestUnknownVariables(t *testing.T) {
	got := cmdline.UnknownVariables(cmdline.All(&cli{}), []string{
		"PATH=/bin", "KRATER_LISTEN=127.0.0.1:0", "KRATER_CPU_LEVEL=avx2", "KRATER_SERVICE_HOST=10.0.0.1", "KRATER_PORT_8080_TCP=x",
		"KRATER_EXPECT_LEVEL=avx2", "KRATER_CONFIG=x",
		"KRATER_KVDTYPE=int8", "KRATER_MAX_SEQ=4", "KRATER_TEMPERATURE_OF_THE_ROOM=20", "KRATER_=", "NOKRATER_X=1",
	})
	want := []string{
		"the environment variable KRATER_ is not a setting and is ignored",
		"the environment variable KRATER_KVDTYPE is not a setting and is ignored; did you mean KRATER_KV_DTYPE?",
		"the environment variable KRATER_MAX_SEQ is not a setting and is ignored; did you mean KRATER_MAX_SEQS?",
		"the environment variable KRATER_TEMPERATURE_OF_THE_ROOM is not a setting and is ignored",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestUnknownVariablesAreReported: by commands on standard error, by a server in its log.
func TestUnknownVariablesAreReported(t *testing.T) {
	t.Setenv("KRATER_LISTNE", "x")
	const words = "KRATER_LISTNE is not a setting and is ignored; did you mean KRATER_LISTEN?"
	var out, log bytes.Buffer
	for args, want := range map[string]int{"version": 0, "serve --print-config": 0, "bench serve --url http://127.0.0.1:1": 1} {
		log.Reset()
		if status := run(strings.Fields(args), &console.Env{Out: &out, Err: &log}); status != want || !strings.Contains(log.String(), words) {
			t.Errorf("%s: %d, %q", args, status, &log)
		}
	}
	log.Reset()
	if status := run([]string{"serve", "--listen", "nonsense", "--log-format", "json"}, &console.Env{Out: &out, Err: &log}); status != 1 {
		t.Errorf("serve: %d, %q", status, &log)
	}
	first, _, _ := strings.Cut(log.String(), "\n")
	if line := decode[map[string]any](t, first); line["level"] != "warn" || !strings.Contains(line["message"].(string), words) {
		t.Errorf("the server says %q", &log)
	}
}
