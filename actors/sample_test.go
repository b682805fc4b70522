package actors

import (
	"slices"
	"testing"

	"krater/actors/msg"
	"krater/kernels/device"
	"krater/stages"
)

// repeating is a stream of a device that repeats steps, and notes what is asked of it.
type repeating struct {
	device.AcceleratorStream
	asked []string
}

func (r *repeating) Repeat(key uint64) bool {
	if key == 0 {
		r.asked = append(r.asked, "forget")
	}
	return false
}

func (r *repeating) Synchronize() error {
	r.asked = append(r.asked, "wait")
	return nil
}

func (r *repeating) Recover() error {
	r.asked = append(r.asked, "recover")
	return nil
}

// TestGivenUpStepsAreNotKept: a step that was given up before all of it was enqueued is
// not captured, whichever actor ends it, so that the device never repeats it.
func TestGivenUpStepsAreNotKept(t *testing.T) {
	for _, abandoned := range []bool{false, true} {
		s := &repeating{}
		b := msg.NewBatch(1, &stages.State{Step: new(stages.Step), Rows: new(stages.Rows)})
		b.Stream = s
		b.Abandoned.Store(abandoned)
		turn := solo(&post{on: func(string, any) {}}, 1, 1)
		want := []string{"wait"}
		if abandoned {
			want = []string{"forget", "wait"}
		}
		(&sampleNode{}).receive(turn, b)
		if !slices.Equal(s.asked, want) {
			t.Errorf("abandoned %v: the step's end asks for %v, want %v", abandoned, s.asked, want)
		}
		s.asked = nil
		for i := range 2 {
			(&groupNode{index: i, startsRank: i == 0}).receive(turn, &msg.Forget{Batch: b})
		}
		if want := []string{"recover"}; !slices.Equal(s.asked, want) {
			t.Errorf("groups that forget it ask for %v, want %v", s.asked, want)
		}
	}
}
