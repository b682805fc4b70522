package predict

import (
	"krater/actors/local/config"
	"krater/kernels/machine"
	"krater/kernels/tensor"
	"krater/scheduler/planner/rates"
)

// ReadRate returns how many bytes of weights a second the CPU, or the GPU of a case, reads for a few rows: as measured on this machine, as
// described, or assumed.
func ReadRate(f *config.Options, l config.Case, m *machine.Machine, gpu bool) float64 {
	l.Measure = nil // a plan that needs more rates measures them
	r, _, ok := foreseenRates(f, l, m, tensor.Format{})
	if gpu {
		if !ok || r.Card.ReadGBps == 0 {
			r.Card, _ = rates.Named(defaultGPU)
			r.Card, _ = r.Card.Complete()
		}
		return 1e9 * r.Card.ReadGBps * r.Card.WeightShare
	}
	if r.CPU.ReadGBps == 0 {
		threads := f.ThreadCount()
		if kept := Kept(f.CacheDir, Identity(m, threads)); kept != nil && kept.CPU != nil {
			r.CPU = *kept.CPU
		} else {
			r.CPU = rates.AssumedCPU(m.CPU.Model, threads, m.CPU.Sockets, levelOf(m.CPU.Features))
		}
	}
	if c, err := r.CPU.Complete(); err == nil {
		r.CPU = c
	}
	return 1e9 * r.CPU.ReadGBps * r.CPU.DecodeShare
}
