package config

import (
	"errors"
	"fmt"

	"krater/scheduler/dispatch"
	"krater/scheduler/planner"
)

// CacheOptions say where integer weights are kept between starts.
type CacheOptions struct {
	CacheDir  string `help:"Folder for converted weights; default: .krater_cache in the model's folder, else the user's cache folder." type:"path" placeholder:"DIR"`
	CacheLoad string `help:"How converted weights come into memory: ${enum}. auto maps them on a machine with one memory node and copies elsewhere." enum:"auto,map,copy" default:"auto"`
}

// RankOptions are those of a rank with memory of its own.
type RankOptions struct {
	VRAM                Size   `name:"vram" help:"Memory of the rank; 0: no bound (hostsim)." default:"0"`
	ExpertVRAM          Size   `name:"expert-vram" help:"Part of it for routed experts; 0: what the rest leaves." default:"0"`
	PrefillExpertVRAM   Size   `name:"prefill-expert-vram" help:"Part of that for the prefill strategy, where decode has another; 0: what it asks for." default:"0"`
	PrefillStrategy     string `help:"Where a prompt's experts are computed: auto, or a strategy by name or number (1 cpu_only, 2 chunked, 3 active_only, 4 static_pin, 5 weighted_pin, 6 lru, 7 persistent, 8 layer_grouped:GROUPS, 9 hot_cached_static)." default:"auto"`
	DecodeStrategy      string `help:"Strategy for decode." default:"auto"`
	ExpertDivisor       int    `help:"Alias of --prefill-strategy, and of --decode-strategy unless that is given: 0 is chunked, 1 persistent, N layer_grouped:N." default:"-1"`
	CacheStrategy       string `help:"Alias of --decode-strategy, and of --prefill-strategy unless --expert-divisor is given." placeholder:"NAME"`
	NoGPUDecode         bool   `name:"no-gpu-decode" help:"Alias of --decode-strategy cpu_only."`
	PrefillPass         int    `help:"Prompt tokens that go through a group of layers before any goes on to the next, for layer_grouped; 0: four prefill chunks." default:"0"`
	GPUPrefillThreshold int    `name:"gpu-prefill-threshold" help:"Rows of a batch from which on it counts as a prompt." default:"300"`
}

// Auto is the strategy that is chosen by what fits.
const Auto = "auto"

// The strategies that auto chooses between.
const (
	Persistent = "persistent"
	CPUOnly    = "cpu_only"
)

// GPUShare is the part of a GPU's memory that the KV cache may fill up to: the rest is for kernels, graphs and what
// operators need besides.
const GPUShare = planner.RefuseShare - 0.03

// Named gives the strategies that flags name; auto stands for the others.
func (f *RankOptions) Named(autoPrefill, autoDecode string) (prefill, decode dispatch.Strategy, err error) {
	prefillAlias, decodeAlias, err := f.aliases()
	if err != nil {
		return nil, nil, err
	}
	for _, x := range []struct {
		flag, text, alias, instead string
		to                         *dispatch.Strategy
	}{{"prefill-strategy", f.PrefillStrategy, prefillAlias, autoPrefill, &prefill}, {"decode-strategy", f.DecodeStrategy, decodeAlias, autoDecode, &decode}} {
		switch {
		case x.text != Auto && x.alias != "" && x.text != x.alias:
			return nil, nil, fmt.Errorf("--%s %s: another flag says %s", x.flag, x.text, x.alias)
		case x.alias != "":
			x.text = x.alias
		case x.text == Auto:
			x.text = x.instead
		}
		if *x.to, err = dispatch.Parse(x.text); err != nil {
			return nil, nil, fmt.Errorf("--%s: %w", x.flag, err)
		}
	}
	return prefill, decode, nil
}

// Wanted are the strategies that flags name, by name; "" for auto.
func (f *RankOptions) Wanted() (prefill, decode string, err error) {
	prefill, decode, err = f.aliases()
	if err != nil {
		return "", "", err
	}
	for _, x := range []struct {
		flag, text string
		to         *string
	}{{"prefill-strategy", f.PrefillStrategy, &prefill}, {"decode-strategy", f.DecodeStrategy, &decode}} {
		if x.text != Auto && x.text != "" {
			*x.to = x.text
		}
		if *x.to == "" {
			continue
		}
		s, err := dispatch.Parse(*x.to)
		if err != nil {
			return "", "", fmt.Errorf("--%s: %w", x.flag, err)
		}
		*x.to = s.Name()
	}
	return prefill, decode, nil
}

// aliases are the strategies that other flags stand for, "" where none does.
func (f *RankOptions) aliases() (prefill, decode string, err error) {
	if f.ExpertDivisor != -1 {
		s, err := dispatch.Divisor(f.ExpertDivisor)
		if err != nil {
			return "", "", fmt.Errorf("--expert-divisor %d: %w", f.ExpertDivisor, err)
		}
		prefill, decode = s.Name(), s.Name()
	}
	if f.CacheStrategy != "" {
		if _, err := dispatch.Parse(f.CacheStrategy); err != nil {
			return "", "", fmt.Errorf("--cache-strategy: %w", err)
		}
		decode = f.CacheStrategy
		if prefill == "" {
			prefill = decode
		}
	}
	if f.NoGPUDecode {
		decode = CPUOnly
	}
	// What is said outright goes before a default of an alias's other half.
	if f.DecodeStrategy != Auto && !f.NoGPUDecode && f.CacheStrategy == "" {
		decode = ""
	}
	if f.PrefillStrategy != Auto && f.ExpertDivisor == -1 {
		prefill = ""
	}
	return prefill, decode, nil
}

// check refuses flags of a rank that is not there.
func (f *RankOptions) check(on Kind) error {
	if f.GPUPrefillThreshold < 1 {
		return fmt.Errorf("--gpu-prefill-threshold %d: want 1 or more", f.GPUPrefillThreshold)
	}
	if f.PrefillPass < 0 || f.PrefillPass > 1<<24 {
		return fmt.Errorf("--prefill-pass %d: want 0 to %d", f.PrefillPass, 1<<24)
	}
	prefill, decode, err := f.Named(CPUOnly, CPUOnly)
	switch {
	case err != nil || on.Own():
		return err
	case f.PrefillPass != 0:
		return errors.New("--prefill-pass: --device cpu has no groups of layers to take prompts through")
	case f.VRAM != 0 || f.ExpertVRAM != 0 || f.PrefillExpertVRAM != 0:
		return errors.New("--vram and --expert-vram: --device cpu has no memory of its own")
	case prefill.Name() != CPUOnly || decode.Name() != CPUOnly:
		return fmt.Errorf("prefill %s, decode %s: --device cpu has only %s", prefill.Name(), decode.Name(), CPUOnly)
	}
	return nil
}
