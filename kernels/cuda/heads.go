//go:build cuda

package cuda

import "krater/kernels/device"

// HeadNorm is RMSNorm over each of the heads of x in place.
func (d *Device) HeadNorm(s device.Stream, x device.Mat, heads int, w device.Mat, eps float32) {
	if heads < 1 || x.Cols%heads != 0 {
		panic(&device.ShapeError{Op: "HeadNorm", Why: "the columns of x are no heads"})
	}
	dim := x.Cols / heads
	for h := range heads {
		one := x.ColRange(h*dim, (h+1)*dim)
		d.RMSNorm(s, one, one, w, eps)
	}
}
