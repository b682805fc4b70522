// Package bin holds the compiled kernels of ../src and a record of their sources.
//
// A source S.cu has two artifacts: S.ptx.gz, the text form for compute_80, which a driver
// compiles for any GPU from 8.0 on, and S.sm_90a.gz, the machine code for 9.0. Both are
// committed, so that building the program needs no CUDA compiler. They are part of the program
// only with the build tag cuda. MANIFEST has, for each artifact, the hash of every source it
// includes, the compiler's version and its flags. RESOURCES has the registers and the memory that
// each kernel uses. Tests compare both with the sources, so stale artifacts are found.
//
// `make cuda-kernels` makes artifacts that are out of date.
package bin

// Capability is the compute capability for which there is machine code; other GPUs get the text
// form.
const hopper = 90

// Architectures of the two artifacts, as RESOURCES names them.
const (
	PTX    = "compute_80"
	Hopper = "sm_90a"
)

// Assembled are further architectures for which the driver compiles the text form. The text form
// is assembled for each of them when it is made, and RESOURCES has the kernels' use of resources
// there. The machine code is not kept: compressed it is 1.8 MB for sm_120 and as much for the
// others, and drivers keep the code that they compile.
var Assembled = []string{"sm_86", "sm_89", "sm_120"}

// ArtifactName returns the file of a source (without .cu) for an architecture.
func ArtifactName(source, arch string) string {
	if arch == PTX {
		return source + ".ptx.gz"
	}
	return source + "." + arch + ".gz"
}
