package cards

import (
	"fmt"
	"io"

	"krater/kernels/tensor"
)

// tripCalls is the number of calls in a measured graph: as many as a model of that many layers
// makes in a step.
const tripCalls = 60

// Trip is a round trip between the GPU and the host, in a graph of tripCalls of them. The GPU
// sends rows to the host, which copies them back as sums.
type Trip struct {
	Rows   int     `json:"rows"`
	Hidden int     `json:"hidden"`
	DType  string  `json:"dtype"`            // of the sent rows; sums are F32
	Silent bool    `json:"silent,omitempty"` // nothing is requested, so the GPU waits for no answer
	US     float64 `json:"us"`
	Fault  string  `json:"fault,omitempty"`

	dtype tensor.DType
}

func newTrip(rows, hidden int, dt tensor.DType, silent bool) *Trip {
	return &Trip{Rows: rows, Hidden: hidden, DType: dt.String(), Silent: silent, dtype: dt}
}

// trips are the measured round trips: a call that requests nothing, one with little more than the
// flags, a row of V2-Lite, an answer as large as that row, a row of the largest models, and
// batches.
func trips() []*Trip {
	return []*Trip{
		newTrip(1, 2048, tensor.BF16, true),
		newTrip(1, 8, tensor.BF16, false),
		newTrip(1, 2048, tensor.BF16, false),
		newTrip(1, 4096, tensor.F32, false),
		newTrip(1, 7168, tensor.BF16, false),
		newTrip(2, 2048, tensor.BF16, false),
		newTrip(4, 2048, tensor.BF16, false),
		newTrip(8, 2048, tensor.BF16, false),
		newTrip(32, 2048, tensor.BF16, false),
		newTrip(32, 7168, tensor.BF16, false),
	}
}

// Name is unique among trips and cases.
func (t *Trip) Name() string {
	name := fmt.Sprintf("trip T=%d H=%d %s", t.Rows, t.Hidden, t.DType)
	if t.Silent {
		name += " nothing asked"
	}
	return name
}

// tripsText prints trips, if there are any.
func tripsText(w io.Writer, list []Trip) error {
	if len(list) == 0 {
		return nil
	}
	if _, err := fmt.Fprintf(w, "round trips to the host and back, %d in a graph\n", tripCalls); err != nil {
		return err
	}
	for i := range list {
		line := list[i].Name()
		if list[i].Fault != "" {
			line += "  WRONG: " + list[i].Fault
		}
		if _, err := fmt.Fprintf(w, "%-102s%10.2f us\n", line, list[i].US); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}
