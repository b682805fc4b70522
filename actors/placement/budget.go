package placement

import (
	"slices"
	"time"

	"krater/kernels/device"
)

// budget bounds what a pool copies between two steps by times of this machine: the copies of a step's
// moves take at most a share of a step, so they have ended when the next one begins.
type budget struct {
	now     func() time.Duration
	last    time.Duration // when the last step began; 0: there was none just before
	steps   []time.Duration
	rate    float64 // bytes a second of recent copies; 0: not known yet
	refused int     // copies that the device has refused
}

const (
	// moveShare is the share of a step that copies between steps may take. Copies also read the host's
	// memory, which the processors' experts are bound by.
	moveShare = 0.25
	// movePart is the part of the slots, 1/movePart, that may move at once.
	movePart = 16
	// stepsKept is how many of the last steps count. The shortest of them is taken: others contain prompts
	// or a time without requests.
	stepsKept = 8
	// rateMemory is the weight of the copies before the last one.
	rateMemory = 0.75
)

// step notes that a step of generated rows begins, and returns the time of the step before, 0 if it is not known.
func (b *budget) step() (took time.Duration) {
	now := b.now()
	if d := now - b.last; b.last > 0 && d > 0 {
		took = d
		if len(b.steps) == stepsKept {
			b.steps = slices.Delete(b.steps, 0, 1)
		}
		b.steps = append(b.steps, d)
	}
	b.last = now
	return took
}

// pause notes that another step begins.
func (b *budget) pause() { b.last = 0 }

// copied notes how long copies took.
func (b *budget) copied(x *device.TimedSpan) {
	if x.From == nil {
		return
	}
	var took [1]time.Duration
	x.To.Ago([]device.Timestamp{x.From}, took[:])
	if took[0] <= 0 { // among others, if the device does not know
		return
	}
	rate := float64(x.Bytes) / took[0].Seconds()
	if b.rate > 0 {
		rate = rateMemory*b.rate + (1-rateMemory)*rate
	}
	b.rate = rate
}

// experts returns the number of experts of the given size that may be copied now, into the given number of slots: at
// least one, so that there is something to measure.
func (b *budget) experts(bytes int64, slots int) int {
	most := max(1, slots/movePart)
	if b.rate == 0 || len(b.steps) == 0 {
		return 1
	}
	return max(1, min(most, int(moveShare*b.rate*slices.Min(b.steps).Seconds()/float64(bytes))))
}
