package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"krater/stages/load"
)

// PipelineOptions cut the model into ranks, and a rank's experts into those of two devices.
type PipelineOptions struct {
	Ranks       int    `help:"Number of ranks that the model is cut into. They compute one after another, and work on different batches at the same time. Each has a device of its own; ranks on the CPU share it. 0: one for each device, or as many as --pp-partition names." default:"0"`
	PPPartition string `name:"pp-partition" help:"Number of layers of each rank, such as 14,13; default: by the memory and the speed of the devices." placeholder:"A,B"`

	ExpertDevice string `name:"expert-device" help:"Second device that computes a share of the routed experts for the only rank, such as cuda:1: of prompts, or of all tokens where the rank lacks experts. With --vram A,B the second size is its own." placeholder:"DEVICE"`
	ExpertShare  int    `name:"expert-share" help:"Percentage of the experts of a layer that --expert-device computes of prompts, up to 90; 0: by the times that are measured at the start, none where it would not help." default:"0"`
}

// Helper returns the device of --expert-device; false: there is none. cuda without an index is the GPU behind that of the rank.
func (f *Options) Helper(rank Place) (p Place, ok bool, err error) {
	if f.ExpertDevice == "" {
		return p, false, nil
	}
	p, bare, err := parsePlace(f.ExpertDevice)
	if bare && rank.Kind == CUDA {
		p.Index = rank.Index + 1
	}
	switch {
	case err != nil:
		err = fmt.Errorf("--expert-device %w", err)
	case p.Kind == CPU:
		err = errors.New("--expert-device cpu: the threads of the CPU serve every rank in any case; see --decode-strategy")
	case (p.Kind == CUDA) != (rank.Kind == CUDA):
		err = fmt.Errorf("--expert-device %s: a rank on %s takes %s", f.ExpertDevice, rank, map[bool]string{true: "another GPU", false: "hostsim"}[rank.Kind == CUDA])
	case p.Kind == CUDA && p == rank:
		err = fmt.Errorf("--expert-device %s: that is the GPU of the rank", f.ExpertDevice)
	}
	return p, err == nil, err
}

// checkHelper refuses options that do not go with a helper of these ranks.
func (f *Options) checkHelper(list []Place) error {
	if f.ExpertShare < 0 || f.ExpertShare > 90 {
		return fmt.Errorf("--expert-share %d: want 0 to 90", f.ExpertShare)
	}
	_, ok, err := f.Helper(list[0])
	switch {
	case err != nil:
		return err
	case !ok && f.ExpertShare != 0:
		return errors.New("--expert-share goes with --expert-device")
	case !ok:
		return nil
	case len(list) > 1:
		return fmt.Errorf("--expert-device %s: it goes with one rank, and --device, --ranks or --pp-partition ask for %d", f.ExpertDevice, len(list))
	case f.BatchInvariant && !f.SameTokens && list[0].Kind == CUDA:
		return fmt.Errorf("--expert-device %s: with --batch-invariant all experts must be on one GPU; --same-tokens takes experts anywhere", f.ExpertDevice)
	}
	return nil
}

// Sizes returns the layers of each rank in PPPartition.
func (f *PipelineOptions) Sizes() (list []int, err error) {
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

// Place is the device of a rank.
type Place struct {
	Kind  Kind
	Index int // of a GPU, in the driver's order
}

// String returns the place as --device has it.
func (p Place) String() string {
	if p.Kind == CUDA {
		return fmt.Sprintf("%s:%d", p.Kind, p.Index)
	}
	return string(p.Kind)
}

// parsePlace reads one device of a list. bare is set if it is a GPU without an index.
func parsePlace(text string) (p Place, bare bool, err error) {
	kind, index, found := strings.Cut(strings.TrimSpace(text), ":")
	p.Kind = Kind(kind)
	if !slices.Contains([]Kind{CPU, HostSim, CUDA}, p.Kind) {
		return p, false, fmt.Errorf("%q: want one of cpu, hostsim, cuda, or a list of them", text)
	}
	if !found {
		return p, p.Kind == CUDA, nil
	}
	if p.Index, err = strconv.Atoi(index); err != nil || p.Kind != CUDA || p.Index < 0 || p.Index > gpusMost {
		return p, false, fmt.Errorf("%q: an index of 0 to %d follows cuda only", text, gpusMost)
	}
	return p, false, nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *Kind) UnmarshalText(text []byte) error {
	for name := range strings.SplitSeq(string(text), ",") {
		if _, _, err := parsePlace(name); err != nil {
			return err
		}
	}
	*k = Kind(text)
	return nil
}

// gpusMost is the largest index of a GPU.
const gpusMost = 63

// Places returns the device of each rank. A GPU without an index is the next one from --gpu on.
func (f *Options) Places() ([]Place, error) {
	names := strings.Split(string(f.Device), ",")
	sizes, err := f.Sizes()
	if err != nil {
		return nil, err
	}
	n := max(1, len(sizes))
	switch {
	case f.Ranks < 0:
		return nil, fmt.Errorf("--ranks %d: want 0 or more", f.Ranks)
	case f.Ranks > 0 && len(sizes) > 0 && f.Ranks != len(sizes):
		return nil, fmt.Errorf("--ranks %d: --pp-partition names %d ranks", f.Ranks, len(sizes))
	case f.Ranks > 0:
		n = f.Ranks
	}
	switch several := len(names) > 1; {
	case several && f.Ranks > 0 && f.Ranks != len(names):
		return nil, fmt.Errorf("--ranks %d: --device names %d devices", f.Ranks, len(names))
	case several && len(sizes) > 0 && len(sizes) != len(names):
		return nil, fmt.Errorf("--pp-partition %s: --device names %d devices", f.PPPartition, len(names))
	case !several:
		names = slices.Repeat(names, n)
	}
	list, next := make([]Place, len(names)), f.GPUIndex
	for i, name := range names {
		bare := false
		if list[i], bare, err = parsePlace(name); err != nil {
			return nil, fmt.Errorf("--device %w", err)
		}
		if bare {
			list[i].Index = next
			next++
		}
	}
	return list, f.checkPlaces(list)
}

// checkPlaces refuses a GPU that several ranks share without a limit of memory for each, and sizes that do not match
// the ranks.
func (f *Options) checkPlaces(list []Place) error {
	devices := len(list)
	if f.ExpertDevice != "" {
		devices++
	}
	if n := f.VRAM.Count(); n > 1 && n != devices {
		return fmt.Errorf("--vram %s: %d sizes for %d ranks", f.VRAM, n, len(list))
	}
	for i, p := range list {
		if j := slices.Index(list, p); p.Kind == CUDA && j < i && (f.VRAM.Of(i) == 0 || f.VRAM.Of(j) == 0) {
			return fmt.Errorf("--device %s: rank %d and rank %d share %s; say with --vram how much of its memory each gets, such as --vram 8GiB,8GiB", f.Device, j, i, p)
		}
	}
	if len(list) > 1 && f.ChosenOnHost() {
		return errors.New("--sparse-kv host goes with one rank")
	}
	return f.checkHelper(list)
}

// Without returns the options without a rank whose device is lost, and without others on the same GPU. The layers are cut anew. A helper counts
// as rank 1.
func (f Options) Without(rank int) (Options, error) {
	list, err := f.Places()
	if err != nil {
		return f, err
	}
	if helper, ok, _ := f.Helper(list[0]); ok {
		kept, at := list[0], 0
		if rank == 0 {
			kept, at = helper, 1
		}
		f.Device, f.VRAM, f.ExpertDevice, f.ExpertShare = Kind(kept.String()), Each(f.VRAM.Of(at)), "", 0
		return f, nil
	}
	var names []string
	var sizes []Size
	for i, p := range list {
		if i != rank && (p.Kind != CUDA || p != list[rank]) {
			names, sizes = append(names, p.String()), append(sizes, f.VRAM.Of(i))
		}
	}
	if len(names) == 0 {
		return f, errors.New("no device is left")
	}
	f.Device, f.VRAM, f.Ranks, f.PPPartition = Kind(strings.Join(names, ",")), Each(sizes...), 0, ""
	if !f.OwnMemory() {
		f.RankOptions = f.RankOptions.onProcessor()
	}
	return f, nil
}

// On reports whether a rank is on a device of a kind.
func (f *Options) On(k Kind) bool {
	return slices.ContainsFunc(strings.Split(string(f.Device), ","), func(name string) bool {
		p, _, err := parsePlace(name)
		return err == nil && p.Kind == k
	})
}

// OwnMemory reports whether a rank is on a device with memory of its own.
func (f *Options) OwnMemory() bool { return f.On(HostSim) || f.On(CUDA) }

// Of returns the options of one rank: of a model that is cut into as many ranks, on the rank's device.
func (f Options) Of(rank int, p Place) Options {
	f.Ranks, f.PPPartition = f.RankCount(), ""
	f.Device, f.GPUIndex, f.VRAM = p.Kind, p.Index, Each(f.VRAM.Of(rank))
	if !p.Kind.Own() {
		f.RankOptions = f.RankOptions.onProcessor()
	}
	if p.Kind != CUDA {
		f.Portable, f.SparseKV = false, "gpu"
	}
	return f
}

// Alone returns the options with the only rank's device by its kind: cuda:1 is cuda with --gpu 1.
func (f Options) Alone(p Place) Options {
	f.Device = p.Kind
	if p.Kind == CUDA {
		f.GPUIndex = p.Index
	}
	return f
}

// RankCount returns the number of ranks.
func (f *Options) RankCount() int {
	list, _ := f.Sizes() // Check refuses a bad list
	return max(1, f.Ranks, len(list), strings.Count(string(f.Device), ",")+1)
}

// OneRank refuses options of several ranks for a command that has one.
func (f *Options) OneRank() error {
	if n := f.RankCount(); n > 1 {
		return fmt.Errorf("--ranks, --device: %d ranks, and this command takes one", n)
	}
	return nil
}

// Groups returns the number of layer groups: at least one per rank.
func (f *Options) Groups() int { return max(f.LayerGroups, f.RankCount()) }

// Cuts returns the layers of each rank as the options name them, of consecutive layers of a model; auto divides the layers among that
// many ranks where no option does.
func (f *Options) Cuts(first, layers int, auto func(layers, ranks int) []int) ([]load.Cut, error) {
	sizes, err := f.Sizes()
	switch {
	case err != nil:
		return nil, err
	case f.RankCount() > layers:
		return nil, fmt.Errorf("--ranks %d: the model has %d layers", f.RankCount(), layers)
	case f.LayerGroups > layers:
		return nil, fmt.Errorf("--layer-groups %d: the model has %d layers", f.LayerGroups, layers)
	case sizes == nil:
		sizes = auto(layers, f.RankCount())
	}
	cuts, err := load.Divide(layers, f.Groups(), sizes)
	if err != nil {
		return nil, fmt.Errorf("--pp-partition: %w", err)
	}
	for i := range cuts {
		cuts[i].First += first
	}
	return cuts, nil
}
