package stat

// Series is a sample whose measurements carry the state of the machine they were made in: a small
// virtual machine has all of its cores at one moment and shares them the next, and only figures of
// one state can be compared.
type Series struct {
	Values Sample
	states []string // of the first values; the rest have none yet
}

// Add appends a measurement that has no state yet.
func (s *Series) Add(v float64) { s.Values = append(s.Values, v) }

// Mark assigns a state to all measurements without one: those since the last look at the machine.
func (s *Series) Mark(state string) {
	for len(s.states) < len(s.Values) {
		s.states = append(s.states, state)
	}
}

// In returns the measurements made in one state.
func (s *Series) In(state string) Sample {
	var out Sample
	for i, of := range s.states {
		if of == state {
			out = append(out, s.Values[i])
		}
	}
	return out
}

// States lists the states met, the most frequent first, of equal ones the earlier.
func (s *Series) States() []string {
	var order []string
	count := map[string]int{}
	for _, state := range s.states {
		if count[state]++; count[state] == 1 {
			order = append(order, state)
		}
	}
	for i := range order { // stable, and there are a handful
		for j := i; j > 0 && count[order[j]] > count[order[j-1]]; j-- {
			order[j], order[j-1] = order[j-1], order[j]
		}
	}
	return order
}
