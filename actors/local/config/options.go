// Package config is the options of an engine, and the sizes of a load that follow from them. Errors
// name an option by its flag. The struct tags describe the flags of the command line, which parses
// into these structs.
package config

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"

	"krater/kernels/cuda"
	"krater/kernels/device"
)

// Kind is a device that computes layers. Options.Device may also be a list with a device for each rank, such as
// "cuda:0,cpu" (see Options.Places).
type Kind string

// The devices. hostsim simulates a GPU in host memory.
const (
	CPU     Kind = "cpu"
	HostSim Kind = "hostsim"
	CUDA    Kind = "cuda"
)

// Own reports whether the device has memory of its own.
func (k Kind) Own() bool { return k != CPU }

// DeviceOptions say which devices of a machine compute.
type DeviceOptions struct {
	Device       Kind   `help:"Device that computes the layers: cpu, hostsim or cuda. A list cuts the model into a rank for each device, such as cuda:0,cuda:1 or cuda,cpu." default:"cpu"`
	GPUIndex     int    `name:"gpu" help:"Index of the GPU, in the driver's order." default:"0"`
	Portable     bool   `name:"portable-kernels" help:"With --device cuda: use the kernels that run on every GPU of compute capability 8.0 or newer, with at most 99 KiB of shared memory per block, instead of those for Hopper. For comparison; RTX GPUs always use them."`
	Threads      int    `help:"CPU threads; 0: one per core." default:"0"`
	ExpertPools  int    `help:"Number of pools that share the routed experts; 0: one per NUMA node." default:"0"`
	FakeTopology string `help:"Divide the threads as if the machine had these NUMA nodes. 2x8,1x4 is two nodes of 8 cores and one of 4." placeholder:"NODES"`
}

// Options say how to run a model.
type Options struct {
	DeviceOptions
	Rows           string        `help:"Type of activations on a GPU: ${enum}. f32 uses the plain kernels, for comparison." enum:"auto,bf16,f32" default:"auto"`
	TileBF16       bool          `name:"tile-bf16" help:"Multiply BF16 weights on the tile unit (AMX), and compute latent attention (DeepSeek, GLM, Kimi) there. Prompts are up to three times as fast; activations are rounded from 24 to 16 significant bits, keys and values of prompts to BF16."`
	LayerGroups    int           `help:"Number of layer groups that the model is cut into. Each is an actor." default:"1"`
	MicroBatches   int           `help:"Number of micro-batches that the running sequences are divided into; 0: one per layer group." default:"0"`
	KVDType        string        `name:"kv-dtype" help:"Type of the KV cache: ${enum}." enum:"bf16,f32,fp8,int8" default:"bf16"`
	KVCache        Size          `name:"kv-cache" help:"Size of the KV cache, such as 512MiB; 0: enough for the full context of every sequence, but at most a quarter of the free memory." default:"0"`
	KVRAM          Size          `name:"kv-ram" help:"Host memory for KV blocks that no longer fit into a GPU's cache, such as 16GiB. A prefix found there is copied back instead of computed again. With --sparse-kv host, for the rows that sparse attention chooses from. 0: none." default:"0"`
	SparseKV       string        `name:"sparse-kv" help:"Where a GPU has the rows of the KV cache that sparse attention chooses from: ${enum}. With host they lie in --kv-ram, and the GPU reads the chosen ones over the link; what it chooses by stays in its memory." enum:"gpu,host" default:"gpu"`
	PrefixCache    bool          `help:"Keep KV blocks for later prompts with the same prefix." default:"true" negatable:""`
	ReuseAnswers   bool          `help:"For latent attention (DeepSeek): let a prompt that continues an answer reuse the keys and values of the generated tokens. Their last bits differ from those of a prompt. Without this flag they are computed again."`
	BatchInvariant bool          `help:"Make answers independent, to the last bit, of the other rows in a batch. On the CPU this always holds and costs nothing. A GPU otherwise chooses kernels by the number of rows: with this flag, steps that mix prompts and answers read the weights twice, and all experts must be on the GPU."`
	SameTokens     bool          `help:"Make answers independent, to the last bit, of everything but the request and the program: of other requests, of what the cache holds, of what came before and of where experts are computed. It includes --batch-invariant. On a GPU experts get the CPU's arithmetic, which takes longer; they must be int3, int4 or int8, in one format on both sides."`
	SharePrefixes  bool          `help:"Let requests with different API keys share prefixes in the KV cache. The time to an answer then shows one client what another has asked."`
	Aging          int           `help:"Steps after which a waiting request gains one level of priority among the requests of its key, again and again; 0: never." default:"1000"`
	BlockTokens    int           `help:"Tokens per KV block." default:"32"`
	MaxSeqs        int           `help:"Maximum number of sequences that run at the same time." default:"32"`
	MaxQueue       int           `help:"Maximum number of waiting requests; more are answered with 429." default:"256"`
	PrefillChunk   int           `help:"Prompt tokens of one sequence in a step; 0: 2048, or 4096 on a GPU of at least 16 GiB and 8192 on one of at least 40 GiB." default:"0"`
	MaxBatchTokens int           `help:"Maximum number of tokens in a step; 0: one prefill chunk and one token per sequence." default:"0"`
	PrefillShare   int           `help:"Maximum number of prompt tokens in a step while other answers are generated." default:"256"`
	InlineBelow    time.Duration `help:"The layer group itself does expert work that it estimates to be shorter than this." default:"50us"`
	PipelineOptions
	RankOptions
	PrecisionOptions
	CacheOptions
	NoMeasure bool `name:"no-measure" help:"Choose strategies by assumed rates where this machine's have not been measured yet. Without this flag they are measured once, in about 10 s."`
	Force     bool `help:"Continue although the memory plan does not fit."`
}

// Check returns an error that names the first option out of its range. Limits that depend on the
// model are checked when the model is loaded.
func (f *Options) Check() error {
	if err := f.checkChoices(); err != nil {
		return err
	}
	for _, r := range []struct {
		name          string
		value, lo, hi int
	}{
		{"gpu", f.GPUIndex, 0, gpusMost},
		{"threads", f.Threads, 0, 1 << 12},
		{"layer-groups", f.LayerGroups, 1, math.MaxInt32},
		{"expert-pools", f.ExpertPools, 0, 64},
		{"micro-batches", f.MicroBatches, 0, 64},
		{"block-tokens", f.BlockTokens, 1, 1 << 20},
		{"max-seqs", f.MaxSeqs, 1, 1 << 16},
		{"max-queue", f.MaxQueue, 1, 1 << 16},
		{"aging", f.Aging, 0, math.MaxInt32},
		{"prefill-chunk", f.PrefillChunk, 0, 1 << 20},
		{"prefill-share", f.PrefillShare, 1, 1 << 20},
		{"max-batch-tokens", f.MaxBatchTokens, 0, 1 << 20},
	} {
		if r.value < r.lo || r.value > r.hi {
			return fmt.Errorf("--%s %d: want %d to %d", r.name, r.value, r.lo, r.hi)
		}
	}
	switch {
	case f.Portable && !f.On(CUDA):
		return errors.New("--portable-kernels goes with --device cuda")
	case f.ChosenOnHost() && !f.On(CUDA):
		return errors.New("--sparse-kv host goes with --device cuda")
	case f.ChosenOnHost() && f.KVRAM == 0:
		return errors.New("--sparse-kv host: --kv-ram says how much host memory its rows may take, such as 32GiB")
	case f.Invariant() && f.ReuseAnswers:
		return fmt.Errorf("%s: --reuse-answers changes the last bits of a prompt that continues an earlier answer; use one of the two", f.invariance())
	case f.Invariant() && f.On(CUDA) && f.MaxSeqs > cuda.MostGenerated:
		return fmt.Errorf("%s: the GPU kernels for generated rows take at most %d, but --max-seqs is %d", f.invariance(), cuda.MostGenerated, f.MaxSeqs)
	}
	if _, err := f.Places(); err != nil {
		return err
	}
	if err := f.RankOptions.check(f.OwnMemory()); err != nil {
		return err
	}
	return f.PrecisionOptions.check()
}

// Invariant reports whether answers must not depend on the other rows in a batch.
func (f *Options) Invariant() bool { return f.BatchInvariant || f.SameTokens }

// invariance names the flag that asks for Invariant.
func (f *Options) invariance() string {
	if f.SameTokens {
		return "--same-tokens"
	}
	return "--batch-invariant"
}

// ChosenOnHost reports whether the rows that sparse attention chooses from lie in host memory.
func (f *Options) ChosenOnHost() bool { return f.SparseKV == "host" }

// Chunk returns --prefill-chunk, or a default that suits a GPU with this much memory; 0: there is
// no GPU. A larger chunk uses each weight for more rows, and expands fewer of a long prompt's
// latents again, but takes more scratch memory.
func (f *Options) Chunk(memory int64) int {
	switch {
	case f.PrefillChunk != 0:
		return f.PrefillChunk
	case memory >= 40<<30:
		return 8192
	case memory >= 16<<30:
		return 4096
	}
	return 2048
}

// MicroBatchCount returns the number of parts that running sequences are divided into.
func (f *Options) MicroBatchCount() int {
	if f.MicroBatches == 0 {
		return f.Groups()
	}
	return f.MicroBatches
}

// States returns the number of batches with memory of their own on a rank. A GPU that is the only rank has two per
// micro-batch, unless several share it with a helper: one in each pair takes the tokens that the other chooses.
func (f *Options) States() int {
	if f.Device == CUDA && f.RankCount() == 1 && (f.ExpertDevice == "" || f.MicroBatchCount() == 1) {
		return 2 * f.MicroBatchCount()
	}
	return f.MicroBatchCount()
}

// ThreadCount returns the number of threads that compute together.
func (f *Options) ThreadCount() int {
	if f.Threads == 0 {
		return runtime.GOMAXPROCS(0)
	}
	return f.Threads
}

// layout returns the layout that the device wants batches in; nil: that of host memory.
func (f *Options) layout() device.Layout {
	if f.Device == CUDA {
		return cuda.Layout{F32: f.Rows == "f32", Same: f.SameTokens}
	}
	return nil
}

// Beside returns the options of another member of a cluster, which has devices and files of its own.
func (f Options) Beside(d DeviceOptions, r RankOptions, c CacheOptions) Options {
	f.DeviceOptions, f.RankOptions, f.CacheOptions = d, r, c
	f.Ranks, f.PPPartition = 0, ""
	return f
}

// OnProcessor returns the options for a machine without a GPU.
func (f Options) OnProcessor() Options {
	f.Device, f.RankOptions = CPU, f.RankOptions.onProcessor()
	return f
}
