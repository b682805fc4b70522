package cards

// Options of a run.
type Options struct {
	Index int    // of the GPU
	Model string // a key of Models; "": v2-lite
	Small bool   // tiny sizes; each case is checked and run twice, and nothing is timed
	Plain bool   // the plain kernels instead of the fast ones
	// Portable selects the kernels for GPUs of all generations (cuda.Options).
	Portable bool
	Seed     uint64
	Commit   string
	// Launches also times every kernel of a case by itself.
	Launches bool
	// Match, if set, selects cases by name.
	Match func(name string) bool
	// Progress, if set, is called with every row.
	Progress func(*Row)
	// Step, if set, is called with the number of steps of Measure that are done.
	Step func(done, all int)
}
