package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"krater/stages/load"
	"krater/stages/model"
)

// PipelineOptions cut the model into ranks.
type PipelineOptions struct {
	Ranks       int    `help:"Number of ranks that the model is cut into. They compute one after another, and work on different batches at the same time. 0: one, or as many as --pp-partition names." default:"0"`
	PPPartition string `name:"pp-partition" help:"Number of layers of each rank, such as 14,13; default: as equal as possible." placeholder:"A,B"`
}

// sizes returns the layers of each rank in PPPartition.
func (f *PipelineOptions) sizes() (list []int, err error) {
	if f.PPPartition == "" {
		return nil, nil
	}
	for text := range strings.SplitSeq(f.PPPartition, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("--pp-partition %s: want numbers of layers, such as 14,13", f.PPPartition)
		}
		list = append(list, n)
	}
	return list, nil
}

// RankCount returns the number of ranks.
func (f *PipelineOptions) RankCount() int {
	list, _ := f.sizes() // check refuses a bad list
	return max(1, f.Ranks, len(list))
}

// check refuses options that contradict each other or the device.
func (f *PipelineOptions) check(k Kind) error {
	list, err := f.sizes()
	switch {
	case err != nil:
		return err
	case f.Ranks < 0:
		return fmt.Errorf("--ranks %d: want 0 or more", f.Ranks)
	case f.Ranks > 0 && len(list) > 0 && f.Ranks != len(list):
		return fmt.Errorf("--ranks %d: --pp-partition names %d ranks", f.Ranks, len(list))
	case f.RankCount() > 1 && k == CUDA:
		return errors.New("--ranks: --device cuda supports one rank only")
	}
	return nil
}

// Groups returns the number of layer groups: at least one per rank.
func (f *Options) Groups() int { return max(f.LayerGroups, f.RankCount()) }

// Cuts returns the layers of each rank.
func (f *Options) Cuts(cfg *model.Config) ([]load.Cut, error) {
	layers := len(cfg.Layers)
	sizes, err := f.sizes()
	switch {
	case err != nil:
		return nil, err
	case f.RankCount() > layers:
		return nil, fmt.Errorf("--ranks %d: the model has %d layers", f.RankCount(), layers)
	case f.LayerGroups > layers:
		return nil, fmt.Errorf("--layer-groups %d: the model has %d layers", f.LayerGroups, layers)
	case sizes == nil:
		sizes = load.Even(layers, f.RankCount())
	}
	cuts, err := load.Divide(layers, f.Groups(), sizes)
	if err != nil {
		return nil, fmt.Errorf("--pp-partition: %w", err)
	}
	return cuts, nil
}
