package config

import (
	"errors"
	"fmt"

	"krater/scheduler/dispatch"
	"krater/scheduler/planner"
)

// CacheOptions say where integer weights are kept between starts.
type CacheOptions struct {
	CacheDir  string `help:"Folder of converted weights; default: .krater_cache in the model's folder, or the user's cache folder if that is read-only." type:"path" placeholder:"DIR"`
	CacheLoad string `help:"How converted weights are loaded: ${enum}. auto maps the file on a machine with one NUMA node and copies it otherwise." enum:"auto,map,copy" default:"auto"`
}

// RankOptions are the options of a rank that has its own memory.
type RankOptions struct {
	VRAM                Sizes  `name:"vram" help:"Limit of GPU memory, such as 16GiB, or a list with one for each rank, such as 16GiB,8GiB; 0: what is free, without a limit on hostsim." default:"0"`
	ExpertVRAM          Size   `name:"expert-vram" help:"Part of --vram for routed experts, on each rank; 0: what the other parts leave." default:"0"`
	PrefillExpertVRAM   Size   `name:"prefill-expert-vram" help:"Part of --expert-vram for the prefill strategy, if decode has a different one; 0: what the strategy needs." default:"0"`
	PrefillStrategy     string `help:"Strategy for prefill, which says where a prompt's experts are computed: auto, a name or a number (1 cpu_only, 2 chunked, 3 active_only, 4 static_pin, 5 weighted_pin, 6 lru, 7 persistent, 8 layer_grouped:GROUPS, 9 hot_cached_static, 10 learned)." default:"auto"`
	DecodeStrategy      string `help:"Strategy for decode: auto, a name or a number as for --prefill-strategy." default:"auto"`
	ExpertDivisor       int    `help:"Alias of --prefill-strategy, and of --decode-strategy unless that is given: 0 is chunked, 1 is persistent, N is layer_grouped:N." default:"-1"`
	CacheStrategy       string `help:"Alias of --decode-strategy, and of --prefill-strategy unless --expert-divisor is given." placeholder:"NAME"`
	NoGPUDecode         bool   `name:"no-gpu-decode" help:"Alias of --decode-strategy cpu_only."`
	PrefillPass         int    `help:"With layer_grouped: prompt tokens that pass one group of layers before the next group starts; 0: four prefill chunks." default:"0"`
	PassShare           int    `name:"pass-share" help:"With layer_grouped: percentage of time that passes of prompts may take while other answers are generated." default:"20"`
	Exchange            bool   `name:"exchange" help:"With learned: let the KV cache take memory of experts while requests need it. --kv-cache is then its smallest size." default:"true" negatable:""`
	GPUPrefillThreshold int    `name:"gpu-prefill-threshold" help:"Number of rows from which a batch uses the prefill strategy." default:"300"`
}

// Auto leaves the choice of a strategy to Krater.
const Auto = "auto"

// Names of strategies that planning treats specially.
const (
	Persistent = "persistent"
	CPUOnly    = "cpu_only"
)

// GPUShare is the share of a GPU's memory that the KV cache may fill. The rest is for kernels,
// graphs and scratch memory of operators.
const GPUShare = planner.RefuseShare - 0.03

// Named returns the strategies that the options name. autoPrefill and autoDecode stand for "auto".
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
			return nil, nil, fmt.Errorf("--%s %s conflicts with another flag that says %s", x.flag, x.text, x.alias)
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

// Wanted returns the names of the strategies that the options name; "" for auto.
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

// aliases returns the strategies that other flags stand for, or "".
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
	// An explicit strategy overrides the one that an alias sets only by default.
	if f.DecodeStrategy != Auto && !f.NoGPUDecode && f.CacheStrategy == "" {
		decode = ""
	}
	if f.PrefillStrategy != Auto && f.ExpertDivisor == -1 {
		prefill = ""
	}
	return prefill, decode, nil
}

// onProcessor returns the options without those of a GPU.
func (f RankOptions) onProcessor() RankOptions {
	f.VRAM, f.ExpertVRAM, f.PrefillExpertVRAM = Each(0), 0, 0
	f.PrefillStrategy, f.DecodeStrategy = Auto, Auto
	f.ExpertDivisor, f.CacheStrategy, f.NoGPUDecode, f.PrefillPass = -1, "", false, 0
	return f
}

// check refuses options of a GPU if no rank has memory of its own.
func (f *RankOptions) check(own bool) error {
	if f.GPUPrefillThreshold < 1 {
		return fmt.Errorf("--gpu-prefill-threshold %d: want 1 or more", f.GPUPrefillThreshold)
	}
	if f.PrefillPass < 0 || f.PrefillPass > 1<<24 {
		return fmt.Errorf("--prefill-pass %d: want 0 to %d", f.PrefillPass, 1<<24)
	}
	if f.PassShare < 1 || f.PassShare > 100 {
		return fmt.Errorf("--pass-share %d: want 1 to 100", f.PassShare)
	}
	prefill, decode, err := f.Named(CPUOnly, CPUOnly)
	switch {
	case err != nil || own:
		return err
	case f.PrefillPass != 0:
		return errors.New("--prefill-pass: --device cpu does not support it; prompts go through all layers at once")
	case f.VRAM.Of(0) != 0 || f.VRAM.Count() > 1 || f.ExpertVRAM != 0 || f.PrefillExpertVRAM != 0:
		return errors.New("--vram and --expert-vram: --device cpu has no memory of its own")
	case prefill.Name() != CPUOnly || decode.Name() != CPUOnly:
		return fmt.Errorf("prefill %s, decode %s: --device cpu has only the strategy %s", prefill.Name(), decode.Name(), CPUOnly)
	}
	return nil
}
