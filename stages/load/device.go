package load

import "krater/kernels/device"

// Device is a device that models are loaded on.
type Device = device.Runner
