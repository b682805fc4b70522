//go:build cuda

package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/kernels/cuda"
	"krater/kernels/cuda/cudatest"
)

// driverCall is a call of the driver and the number of an error after which a GPU is well.
type driverCall struct {
	call  string
	code  int
	when  moments
	short moments // in which short runs have it
}

// moments are when calls are refused.
type moments uint8

const (
	start moments = 1 << iota // of the program, up to its first request
	first                     // request of a pipeline
	later                     // requests
)

var refusedCalls = []driverCall{
	{"cuMemcpy", 1, start | later, start | later}, {"cuLaunchKernel", 2, start | later, later}, {"cuGraphLaunch", 2, start | later, later},
	{"cuEventRecord", 2, start | later, later}, {"cuStreamWaitEvent", 400, start | later, later}, {"cuStreamWriteValue32", 801, start | later, later},
	{"cuEventQuery", 400, start | later, 0}, {"cuStreamQuery", 400, start | later, 0}, {"cuStreamSynchronize", 2, start | later, 0},
	{"cuStreamBeginCapture", 2, start | first, 0}, {"cuStreamEndCapture", 901, start | first, 0}, {"cuGraphInstantiate", 2, start | first, first},
	{"cuMemAlloc", 2, start | first, start}, {"cuMemHostAlloc", 2, start | first, start | first}, {"cuEventCreate", 2, start | first, start},
	{"cuMemset", 1, start | first, 0}, {"cuMemFree", 1, start | first, 0},
	{"cuMemHostRegister", 2, start, start}, {"cuStreamCreate", 2, start, start}, {"cuCtxSynchronize", 2, start, 0},
	{"cuModuleLoadData", 2, start, 0}, {"cuModuleGetFunction", 2, start, start}, {"cuFuncGetParamInfo", 2, start, 0}, {"cuFuncSetAttribute", 1, start, 0},
	{"cuMemGetInfo", 2, start, 0}, {"cuMemHostGetDevicePointer", 1, start, 0}, {"cuMemHostUnregister", 1, start, 0}, {"cuMemFreeHost", 1, start, 0},
}

// at reports whether the call is refused then.
func (c *driverCall) at(m moments) bool {
	if testing.Short() {
		return c.short&m != 0
	}
	return c.when&m != 0
}

// besideAll are pairs of strategies that between them have every kind of copy and of work.
var besideAll = []struct {
	prefill, decode string
	args            []string
}{
	{"layer_grouped", "hot_cached_static", nil}, // host calls, copies for prompts
	{"layer_grouped", "learned", nil},           // tables that change between steps
	{"hot_cached_static", "lru", []string{"--micro-batches", "2"}},
	{"", "", nil},
	{"active_only", "lru", []string{"--layer-groups", "2"}},
	{"cpu_only", "cpu_only", nil},
}

// nths are which calls of a kind are refused: with KRATER_EVERY_CALL each, in a short run the first
// and a few more.
func nths(yield func(int) bool) {
	factor := 1.7
	if testing.Short() {
		factor = 16
	}
	if os.Getenv("KRATER_EVERY_CALL") != "" {
		factor = 1
	}
	for nth := 1; yield(nth); nth = max(nth+1, int(float64(nth)*factor)) {
	}
}

// TestRefusedCallsOnCard: whatever call of a request the driver refuses, the request ends with a
// typed error, or is answered all the same, and the next one is answered right.
func TestRefusedCallsOnCard(t *testing.T) {
	for i, x := range besideAll {
		if testing.Short() && i > 0 {
			break
		}
		t.Run(x.prefill+", "+x.decode, func(t *testing.T) {
			b := actorsBesideCard(t, x.prefill, x.decode, 1, x.args...)
			faults := 0
			begin := func() {
				if err := b.Close(); err != nil {
					t.Error(err)
				}
				if err := b.start(testWriter{t}); err != nil {
					t.Fatal(err)
				}
				faults = 0
			}
			b.po.Threshold = 3
			if testing.Short() {
				b.prompt = b.prompt[:5] // over the threshold
			}
			begin()
			b.learn(t, 6)
			const each = 6 // faults of a pipeline: ten in as many seconds are too many
			noticed := map[string]int{}
			refuse := func(call string, nth, code int) (fired bool) {
				cudatest.Fail(t, fmt.Sprintf("%s:%d:%d", call, nth, code))
				out, fault := b.ask(t, 6, false)
				fired = cudatest.Fail(t, "") > 0
				switch {
				case fault == nil && !slices.Equal(out, b.want):
					t.Errorf("%s %d: %v, want %v", call, nth, out, b.want)
				case fault != nil && (!fired || fault.Kind != engine.Internal || !slices.Equal(out, b.want[:len(out)])):
					t.Errorf("%s %d: %v after %v", call, nth, fault, out)
				}
				if fault != nil {
					faults++
					noticed[call]++
				}
				if again, fault := b.ask(t, 6, false); fault != nil || !slices.Equal(again, b.want) {
					t.Fatalf("after %s %d: %v, %v, want %v; the pipeline: %v", call, nth, again, fault, b.want, b.Err())
				}
				return fired
			}
			for _, r := range refusedCalls {
				if !r.at(first | later) {
					continue
				}
				for nth := range nths {
					if r.when&first != 0 || faults == each {
						begin()
					}
					if !refuse(r.call, nth, r.code) {
						break
					}
				}
			}
			for _, call := range []string{"cuMemcpy", "cuLaunchKernel", "cuGraphLaunch", "cuStreamWriteValue32", "cuGraphInstantiate"} {
				if noticed[call] == 0 && (x.decode != "lru" || !strings.Contains(call, "Graph")) {
					t.Errorf("no request noticed a %s that was refused: %v", call, noticed)
				}
			}
			t.Log(noticed)
		})
	}
}

// TestRefusedCallsAtStart: whatever call the driver refuses while the program starts and answers
// for the first time, it says so in a line and is gone, or goes on; then at most that first request
// fails.
func TestRefusedCallsAtStart(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	for i, x := range besideAll {
		if testing.Short() && i > 0 {
			break
		}
		t.Run(x.prefill+", "+x.decode, func(t *testing.T) {
			want := actorsBesideCard(t, x.prefill, x.decode, 1, x.args...).want[:4]
			// begin starts, answers twice and ends, and gives why it did not start.
			begin := func(call string, nth, code int) (fired bool, refusal error) {
				cudatest.Fail(t, fmt.Sprintf("%s:%d:%d", call, nth, code))
				var told bytes.Buffer
				b, err := loadBesideCard(t, &told, x.prefill, x.decode, 1, append(x.args, "--gpu-prefill-threshold", "40")...)
				if err == nil {
					defer b.s.Close()
					err = b.run(&told)
				}
				if err != nil {
					return cudatest.Fail(t, "") > 0, err
				}
				defer b.Close()
				out, fault := b.ask(t, 4, false)
				fired = cudatest.Fail(t, "") > 0
				if fault == nil && !slices.Equal(out, want) || fault != nil && (!fired || fault.Kind != engine.Internal || !slices.Equal(out, want[:len(out)])) {
					t.Errorf("%s %d: %v after %v, want %v", call, nth, fault, out, want)
				}
				if slow := strings.Contains(told.String(), "slower"); call == "cuMemHostRegister" && slow != (fired && code == 2) {
					t.Errorf("%s %d: told: %v", call, nth, slow)
				}
				if out, fault := b.ask(t, 4, false); fault != nil || !slices.Equal(out, want) {
					t.Errorf("%s %d: %v, %v, want %v; %s", call, nth, out, fault, want, told.String())
				}
				return fired, nil
			}
			refusals := 0
			for _, r := range refusedCalls {
				if !r.at(start) {
					continue
				}
				for nth := range nths {
					fired, err := begin(r.call, nth, r.code)
					if err != nil {
						refusals++
						if !fired || strings.Contains(err.Error(), "goroutine") || !strings.Contains(err.Error(), ":") {
							t.Errorf("%s %d: %v", r.call, nth, err)
						}
					}
					if !fired {
						break
					}
				}
			}
			if refusals < 6 {
				t.Errorf("%d starts were refused", refusals)
			}
		})
	}
}

// TestLostCard: a fault of a kernel, after which a GPU answers nothing but that, ends the request
// in hand with a typed error and the pipeline with it, at once.
func TestLostCard(t *testing.T) {
	b := actorsBesideCard(t, "layer_grouped", "hot_cached_static", 1)
	cudatest.Fail(t, "launch:9:700")
	out, fault := b.ask(t, 8, false)
	if fault == nil || fault.Kind != engine.Internal && fault.Kind != engine.Unavailable {
		t.Errorf("%v after %v", fault, out)
	}
	select {
	case <-b.Failed():
	case <-time.After(time.Minute):
		t.Fatal("the pipeline goes on")
	}
	if err := b.Err(); !strings.Contains(err.Error(), "context is lost") {
		t.Error(err)
	}
	begin := time.Now()
	if err := b.Close(); err == nil {
		t.Error("no error says that the pipeline has failed")
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("Close took %v", took)
	}
}
