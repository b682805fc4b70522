package config

import (
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
)

// parsed are the options of a command line.
func parsed(t testing.TB, args ...string) Options {
	t.Helper()
	var o Options
	p, err := kong.New(&o)
	if err == nil {
		_, err = p.Parse(args)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestDefault: a program without a command line gets what a command line without flags gives.
func TestDefault(t *testing.T) {
	got := Default()
	if want := parsed(t); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got.MaxSeqs != 32 || got.InlineBelow != 50*time.Microsecond || !got.PrefixCache || got.Device != CPU || got.GroupSize != "auto" {
		t.Errorf("%+v", got)
	}
	if err := got.Check(); err != nil {
		t.Error(err)
	}
}

// TestCheck names the option that is wrong.
func TestCheck(t *testing.T) {
	for want, change := range map[string]func(*Options){
		`--device "gpu": want one of cpu, hostsim, cuda`: func(o *Options) { o.Device = "gpu" },
		`PrecisionOptions: GroupSize: "7"`:               func(o *Options) { o.GroupSize = "7" },
		"--max-seqs 0: want 1":                           func(o *Options) { o.MaxSeqs = 0 },
		"--gpu-prefill-threshold 0":                      func(o *Options) { o.GPUPrefillThreshold = 0 },
		"--device cpu has no memory of its own":          func(o *Options) { o.VRAM = Each(1 << 30) },
		"--device cpu has only the strategy cpu_only":    func(o *Options) { o.DecodeStrategy = "lru" },
		"remove the flags of single parts":               func(o *Options) { o.Precision, o.LMHeadQuant = "int8", "int4" },
		"--same-tokens: --reuse-answers":                 func(o *Options) { o.SameTokens, o.ReuseAnswers = true, true },
		"--reuse-answers changes the last bits":          func(o *Options) { o.BatchInvariant, o.ReuseAnswers = true, true },
	} {
		o := Default()
		change(&o)
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
