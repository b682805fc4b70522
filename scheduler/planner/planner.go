// Package planner adds up what a model needs of each device's memory, before
// anything is loaded, and says whether it fits. It knows sizes only; where they
// come from is the loader's business.
package planner

import (
	"errors"
	"fmt"
	"math"
)

// RefuseShare of a device's memory is the most a plan may take: what is left is
// for the system, which would otherwise swap or end the process later, in the
// middle of an answer.
const RefuseShare = 0.95

// OffShare is how far the memory in use may be from the plan before it is worth
// a warning.
const OffShare = 0.10

// ErrTooLarge: a plan takes more than RefuseShare of a device.
var ErrTooLarge = errors.New("the memory plan does not fit")

// Component is one use of a device's memory.
type Component struct {
	Device string `json:"-"`
	Name   string `json:"name"`   // "experts", "KV cache"
	Detail string `json:"detail"` // "2 layers of 12, BF16"
	Bytes  int64  `json:"bytes"`
}

// Device is a memory with its size in bytes; 0 where unknown, which never
// refuses.
type Device struct {
	Name      string `json:"name"`
	Total     int64  `json:"total"`     // the budget: the whole memory, or what a container or a flag allows
	Available int64  `json:"available"` // of it, free now
}

// Plan is the components of each device added up.
type Plan struct {
	Devices []Budget `json:"devices"` // in the order given
}

// Budget is a device with what is to be put on it.
type Budget struct {
	Device
	Components []Component `json:"components"` // in the order given, without empty ones
	Planned    int64       `json:"planned"`    // their sum
}

// New adds up. A component must name one of the devices.
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

// Add is the sum of two sizes, at most the largest there is.
func Add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Share is the part of the device the plan takes, 0 if its size is unknown.
func (b *Budget) Share() float64 {
	if b.Total == 0 {
		return 0
	}
	return float64(b.Planned) / float64(b.Total)
}

// Fits reports whether the plan may be carried out on this device.
func (b *Budget) Fits() bool { return b.Share() <= RefuseShare }

// Tight reports whether a plan that fits takes more than is free now.
func (b *Budget) Tight() bool { return b.Fits() && b.Available > 0 && b.Planned > b.Available }

// Fits reports whether the plan may be carried out on all devices.
func (p *Plan) Fits() bool {
	for i := range p.Devices {
		if !p.Devices[i].Fits() {
			return false
		}
	}
	return true
}

// Check is nil for a plan that fits, else ErrTooLarge with the whole table.
func (p *Plan) Check() error {
	if p.Fits() {
		return nil
	}
	return fmt.Errorf("%w:\n%s", ErrTooLarge, p)
}

// Off is how far measured bytes are from planned ones as a part of the plan,
// above 0 when there are more. Without a plan it is 0.
func Off(planned, measured int64) float64 {
	if planned == 0 {
		return 0
	}
	return float64(measured-planned) / float64(planned)
}
