// Package load puts a model on a device: weights bound to the stages, layer
// groups cut, KV caches and tables allocated.
package load

import "krater/kernels/device"

// Device is a device that models are loaded on.
type Device = device.Device
