package dispatch

// cpuOnly leaves all routed experts to the host. The device needs no memory for them; their input
// and output rows are copied for every layer.
type cpuOnly struct{}

func (cpuOnly) Name() string { return "cpu_only" }

func (cpuOnly) Start(s *Setup) (Start, error) {
	return Start{Host: [Phases]bool{true, true}, Fixed: [Phases]bool{true, true}}, s.check()
}

func (cpuOnly) Decide(out *Decision, in *Step) {
	out.reset()
	for i := range in.Work {
		out.Host = append(out.Host, int32(i))
	}
}

func (cpuOnly) Smaller(*Setup) Strategy { return nil }
