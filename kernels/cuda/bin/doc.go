// Package bin holds the compiled kernels of ../src and says what they were made from.
//
// A source S.cu has two artifacts: S.ptx.gz, the text form for compute_80 that a driver
// compiles for any GPU from 8.0 on, and S.sm_90a.gz, the machine code for 9.0. Both are
// committed, so that building the program takes no CUDA compiler; they are in the
// program only with the build tag cuda. MANIFEST has, for each artifact, the hash of
// every source it includes, the compiler's version and its flags, and RESOURCES what
// each kernel needs of a multiprocessor. Tests compare both with the sources, so stale
// artifacts cannot stay.
//
// `make cuda-kernels` makes what is out of date.
package bin

// Capability of the GPUs that the machine code is for; all others get the text form.
const hopper = 90

// Architectures of the two artifacts, as RESOURCES names them.
const (
	PTX    = "compute_80"
	Hopper = "sm_90a"
)

// Assembled are further architectures whose GPUs the driver compiles the text form for: it is
// assembled for each when it is made, and RESOURCES has what kernels need there. The machine code
// is not kept: packed it is 1.8 MB for sm_120 and as much for the others, and drivers keep what they compile.
var Assembled = []string{"sm_86", "sm_89", "sm_120"}

// ArtifactName is the file of a source (without .cu) for an architecture.
func ArtifactName(source, arch string) string {
	if arch == PTX {
		return source + ".ptx.gz"
	}
	return source + "." + arch + ".gz"
}
