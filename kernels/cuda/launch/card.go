package launch

// GraphsKept is how many steps a stream keeps as graphs: 16 batch sizes of four states.
const GraphsKept = 64

// GraphBytes is what the driver takes of the host's memory for the launches of a layer in a
// graph: 3.0 MB a graph of DeepSeek-V2-Lite's 27 layers (H200, driver 580).
const GraphBytes = 112 << 10

// GPU is what the choice of a kernel may depend on.
type GPU struct {
	Name      string
	SMs       int  // multiprocessors
	Hopper    bool // the sm_90a build is loaded: kernels named ..._h exist, and PDL
	SharedMax int  // dynamic shared memory a block can have, bytes
}
