//go:build cuda

package driver

/*
#include "driver.h"
*/
import "C"

import (
	"fmt"

	"gorgonia.org/cu"
)

// Graph is an executable copy of captured work. It belongs to one goroutine. Device addresses and
// launch arguments are fixed in it: keep values that change from step to step in device buffers,
// or use Update.
type Graph struct {
	exec  C.CUgraphExec
	nodes int
}

// capture records the work that record enqueues on s, without running it. The stream must not be
// the default one. If record fails, the capture is ended, so that the stream stays usable.
func capture(s cu.Stream, record func() error) (C.CUgraph, error) {
	// Thread-local: other threads may allocate and copy during the capture, this one must not.
	const mode = C.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
	if err := check("cuStreamBeginCapture", C.cuStreamBeginCapture(stream(s), mode)); err != nil {
		return nil, err
	}
	var g C.CUgraph
	recordErr := record()
	endErr := check("cuStreamEndCapture", C.cuStreamEndCapture(stream(s), &g))
	if recordErr == nil {
		recordErr = endErr
	}
	if recordErr != nil {
		if g != nil {
			C.cuGraphDestroy(g)
		}
		return nil, recordErr
	}
	return g, nil
}

// Capture makes a graph of the work that record enqueues on s (launches, copies, memory
// operations).
func Capture(s cu.Stream, record func() error) (*Graph, error) {
	g, err := capture(s, record)
	if err != nil {
		return nil, err
	}
	defer C.cuGraphDestroy(g)
	var n C.size_t
	if err := check("cuGraphGetNodes", C.cuGraphGetNodes(g, nil, &n)); err != nil {
		return nil, err
	}
	x := &Graph{nodes: int(n)}
	if err := check("cuGraphInstantiate", C.cuGraphInstantiateWithFlags(&x.exec, g, 0)); err != nil {
		return nil, err
	}
	return x, nil
}

// Update gives the graph new launch arguments, sizes and addresses from a new recording
// of the same shape. It costs half of a new Capture. On an error the graph is as before.
func (x *Graph) Update(s cu.Stream, record func() error) error {
	g, err := capture(s, record)
	if err != nil {
		return err
	}
	defer C.cuGraphDestroy(g)
	var info C.CUgraphExecUpdateResultInfo
	if err := check("cuGraphExecUpdate", C.cuGraphExecUpdate(x.exec, g, &info)); err != nil {
		return fmt.Errorf("%w (update result %d)", err, int(info.result))
	}
	return nil
}

// Nodes returns the number of captured nodes.
func (x *Graph) Nodes() int { return x.nodes }

// Launch enqueues the whole graph on s.
func (x *Graph) Launch(s cu.Stream) error {
	return check("cuGraphLaunch", C.cuGraphLaunch(x.exec, stream(s)))
}

// Upload moves the graph to the GPU ahead of its first launch, which is slow otherwise.
func (x *Graph) Upload(s cu.Stream) error {
	return check("cuGraphUpload", C.cuGraphUpload(x.exec, stream(s)))
}

// Destroy frees the graph. A launch in progress still completes.
func (x *Graph) Destroy() error {
	err := check("cuGraphExecDestroy", C.cuGraphExecDestroy(x.exec))
	x.exec = nil
	return err
}
