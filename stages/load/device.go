// Package load puts a model on a device: weights bound to the stages, layer
// groups cut, KV caches and tables allocated.
package load

import (
	"krater/kernels/device"
	"krater/stages/embed"
	"krater/stages/group"
	"krater/stages/head"
)

// Device is a device with the operators of every stage.
type Device interface {
	device.Device
	embed.Ops
	group.Ops
	head.Ops
}
