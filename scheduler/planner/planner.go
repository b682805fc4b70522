// Package planner adds up the memory that a model needs on each device, before anything is loaded, and
// reports whether it fits. The loader computes the sizes.
package planner

import (
	"errors"
	"fmt"
	"math"
)

// RefuseShare is the largest share of a device's memory that a plan may take. The system needs the
// remaining memory. Without it, it would swap or end the process later, in the middle of an answer.
const RefuseShare = 0.95

// OffShare is the largest difference between the memory in use and the plan, relative to the plan, that
// is not worth a warning.
const OffShare = 0.10

// ErrTooLarge reports a plan that takes more than RefuseShare of a device.
var ErrTooLarge = errors.New("the memory plan does not fit")

// Component is one use of a device's memory.
type Component struct {
	Device string `json:"-"`
	Name   string `json:"name"`   // "experts", "KV cache"
	Detail string `json:"detail"` // "2 layers of 12, BF16"
	Bytes  int64  `json:"bytes"`
}

// Device is a memory with its size in bytes. A size of 0 is unknown, and every plan fits it.
type Device struct {
	Name      string `json:"name"`
	Total     int64  `json:"total"`     // the budget: the whole memory, or what a container or a flag allows
	Available int64  `json:"available"` // bytes of it that are free now
}

// Plan holds the sum of the components on each device.
type Plan struct {
	Devices []Budget `json:"devices"` // in the order given
}

// Budget is a device with the components planned for it.
type Budget struct {
	Device
	Components []Component `json:"components"` // in the order given, without empty ones
	Planned    int64       `json:"planned"`    // their sum
}

// New adds up the components of each device. Every component must name one of the devices.
func New(devices []Device, components []Component) (*Plan, error) {
	p := &Plan{Devices: make([]Budget, len(devices))}
	index := make(map[string]int, len(devices))
	for i, d := range devices {
		if _, double := index[d.Name]; double || d.Total < 0 || d.Available < 0 {
			return nil, fmt.Errorf("plan: device %q: twice there, or with a size below 0", d.Name)
		}
		index[d.Name] = i
		p.Devices[i].Device = d
	}
	for _, c := range components {
		i, ok := index[c.Device]
		if !ok || c.Bytes < 0 {
			return nil, fmt.Errorf("plan: %s: %d bytes on device %q", c.Name, c.Bytes, c.Device)
		}
		if c.Bytes > 0 {
			b := &p.Devices[i]
			b.Components = append(b.Components, c)
			b.Planned = Add(b.Planned, c.Bytes)
		}
	}
	return p, nil
}

// Add returns the sum of two sizes, at most math.MaxInt64.
func Add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Share returns the share of the device's memory that the plan takes, 0 if the size is unknown.
func (b *Budget) Share() float64 {
	if b.Total == 0 {
		return 0
	}
	return float64(b.Planned) / float64(b.Total)
}

// Fits reports whether the plan takes at most RefuseShare of the device.
func (b *Budget) Fits() bool { return b.Share() <= RefuseShare }

// Tight reports whether a plan that fits takes more than is free now.
func (b *Budget) Tight() bool { return b.Fits() && b.Available > 0 && b.Planned > b.Available }

// Fits reports whether the plan fits on all devices.
func (p *Plan) Fits() bool {
	for i := range p.Devices {
		if !p.Devices[i].Fits() {
			return false
		}
	}
	return true
}

// Check returns nil if the plan fits, else an error that wraps ErrTooLarge and has the whole table.
func (p *Plan) Check() error {
	if p.Fits() {
		return nil
	}
	return fmt.Errorf("%w:\n%s", ErrTooLarge, p)
}

// Off returns the difference of measured and planned bytes relative to the plan. It is positive if
// more was measured, and 0 if planned is 0.
func Off(planned, measured int64) float64 {
	if planned == 0 {
		return 0
	}
	return float64(measured-planned) / float64(planned)
}
