package config

// Reporter is how a load tells people about itself.
type Reporter struct {
	Notice   func(line string) // something to look at
	Info     func(line string)
	Progress func(phase string, done, all int64) // bytes
	Measured Telling                             // how far a measurement is
	End      func()                              // of the progress
}

// Complete has functions that tell nothing where there are none.
func (r Reporter) Complete() Reporter {
	if r.Notice == nil {
		r.Notice = func(string) {}
	}
	if r.Info == nil {
		r.Info = func(string) {}
	}
	if r.Progress == nil {
		r.Progress = func(string, int64, int64) {}
	}
	if r.Measured == nil {
		r.Measured = func(string, float64, float64) {}
	}
	if r.End == nil {
		r.End = func() {}
	}
	return r
}

// Telling is told what is being measured and how much of it is done.
type Telling = func(what string, done, all float64)
