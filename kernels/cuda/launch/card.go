package launch

// GraphsKept is the number of graphs that a stream keeps: 16 batch sizes in four states.
const GraphsKept = 64

// GraphBytes is the host memory that the driver uses in a graph for the launches of a layer: 3.0
// MB per graph of DeepSeek-V2-Lite's 27 layers (H200, driver 580).
const GraphBytes = 112 << 10

// GPU has the properties of a GPU on which the choice of a kernel depends.
type GPU struct {
	Name      string
	SMs       int  // multiprocessors
	Hopper    bool // the sm_90a build is loaded: kernels named ..._h exist, and PDL
	SharedMax int  // the most dynamic shared memory of a block, bytes
}
