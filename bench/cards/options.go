package cards

// Options of a run.
type Options struct {
	Index int    // of the GPU
	Model string // of Models; "": v2-lite
	Small bool   // tiny sizes, each checked and run twice, nothing timed
	Plain bool   // the plain kernels instead of the fast ones
	// Portable has a GPU run the kernels of all generations (cuda.Options).
	Portable bool
	Seed     uint64
	Commit   string
	// Launches has every kernel of a case timed alone, too.
	Launches bool
	// Match, if set, leaves out cases whose name it refuses.
	Match func(name string) bool
	// Progress, if set, is told of every row.
	Progress func(*Row)
	// Step, if set, is told how many steps of Measure are done.
	Step func(done, all int)
}
