package local

import (
	"errors"
	"fmt"

	"krater/actors/local/config"
	"krater/kernels/cuda"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/load"
)

// GPU is a GPU that computes layers.
type GPU interface {
	load.Device
	// Describe returns the driver's name for it.
	Describe() string
	// Capacity returns all its memory in bytes, including what other programs use.
	Capacity() int64
}

// ErrNoGPU reports that there is no GPU, or that this program cannot use one.
var ErrNoGPU = errors.New("no GPU")

// FactsOf describes an open GPU.
func FactsOf(c GPU) config.RankFacts {
	return config.RankFacts{Name: c.Describe(), Memory: c.Memory().Total, Capacity: c.Capacity()}
}

// openGPU opens the GPU that the options name.
func openGPU(f *config.Options) (GPU, error) {
	c, err := OpenGPU(cuda.Options{Index: f.GPUIndex, Budget: int64(f.VRAM), F32: f.Rows == "f32", Invariant: f.Invariant(), Same: f.SameTokens, Portable: f.Portable})
	if err != nil {
		return nil, fmt.Errorf("--device cuda: %w", err)
	}
	return c, nil
}

// Settle opens the GPU that --device cuda asks for. If there is none, it reports that and returns
// options for the CPU.
func Settle(f config.Options, r config.Reporter) (GPU, config.Options, error) {
	if f.Device != config.CUDA {
		return nil, f, nil
	}
	c, err := openGPU(&f)
	if errors.Is(err, ErrNoGPU) {
		r.Notice(fmt.Sprintf("%v; running on the CPU", err))
		return nil, f.OnProcessor(), nil
	}
	return c, f, err
}

// packedExpert finds an expert for the GPU in the open cache.
func (s *Model) packedExpert(layer, e int) (device.QExpert, error) {
	list := s.experts.Experts(tensor.GPU, layer)
	if e >= len(list) {
		return device.QExpert{}, fmt.Errorf("the cache has %d experts", len(list))
	}
	return list[e], nil
}
