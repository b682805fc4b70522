// Package hosttest is a device for tests that need memory and copies only: it
// has no operators.
package hosttest

import "krater/kernels/device"

// Device allocates Go memory.
type Device struct{}

// Buffer is Go memory.
type Buffer []byte

func (b Buffer) Size() int    { return len(b) }
func (b Buffer) Host() []byte { return b }
func (b Buffer) Free()        {}

func (Device) Name() string                         { return "hosttest" }
func (Device) Alloc(n int) (device.Buffer, error)   { return Buffer(make([]byte, n)), nil }
func (Device) Wrap(b []byte) (device.Buffer, error) { return Buffer(b), nil }
func (Device) NewStream() (device.Stream, error)    { return Stream{}, nil }
func (Device) Accelerator() device.Accelerator      { return nil }
func (Device) Run(device.Stream, device.List)       { panic("hosttest: a device without operators") }
func (Device) Fused(device.List) int                { return 1 }
func (Device) Memory() device.Memory                { return device.Memory{} }
func (Device) Close() error                         { return nil }

// Stream copies at once. It copies dense matrices only.
type Stream struct{ device.Immediate }

func (Stream) Device() device.Device { return Device{} }
func (Stream) CopyIn(dst device.Mat, src []byte) {
	copy(dst.Buf.Host()[dst.Off:dst.Off+dst.Bytes()], src)
}
func (Stream) CopyOut(dst []byte, src device.Mat) {
	copy(dst, src.Buf.Host()[src.Off:src.Off+src.Bytes()])
}
