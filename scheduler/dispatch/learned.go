package dispatch

// learned begins as hot_cached_static does. Within a step its experts stay where they are. Between steps
// the caller moves them by what routers chose recently (scheduler/learn): see Start.Learns.
type learned struct{}

func (learned) Name() string { return "learned" }

func (l learned) Start(s *Setup) (Start, error) {
	start, err := keepHottest(l.Name(), s)
	start.Learns = start.Host[Decode]
	return start, err
}

func (learned) Decide(out *Decision, in *Step) { resident(out, in) }

func (learned) Smaller(*Setup) Strategy { return cpuOnly{} }
