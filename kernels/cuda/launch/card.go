package launch

// Card is what the choice of a kernel may depend on.
type Card struct {
	Name      string
	SMs       int  // multiprocessors
	Hopper    bool // the sm_90a build is loaded: kernels named ..._h exist, and PDL
	SharedMax int  // dynamic shared memory a block can have, bytes
}
