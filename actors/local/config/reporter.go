package config

// Reporter receives the progress and the notices of a load.
type Reporter struct {
	Notice   func(line string) // called for each notice
	Info     func(line string)
	Progress func(phase string, done, all int64) // bytes
	Measured Telling                             // called as a measurement advances
	End      func()                              // called when the progress ends
}

// Complete replaces missing functions by functions that do nothing.
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

// Telling receives what is being measured and the share that is done.
type Telling = func(what string, done, all float64)
