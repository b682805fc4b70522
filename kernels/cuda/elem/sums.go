package elem

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
)

// Sums adds the launch that computes the device.SumOf of up to three dense matrices as that many
// numbers of 64 bits, device.SumParts, at out, which has them when their sum is.
func Sums(l *launch.List, out launch.Ptr, parts []launch.Mat) {
	const op, threads = "Sums", 256
	args := []launch.Arg{launch.P(out)}
	for i := range 3 {
		var m launch.Mat
		if i < len(parts) {
			m = parts[i]
		}
		bytes := m.Rows * m.Cols * m.DType.Size()
		if !m.Dense() || bytes%4 != 0 || bytes/4 >= device.SumWords || len(parts) > 3 || out%8 != 0 {
			refuse(op, "%d matrices, of them %v", len(parts), m)
		}
		args = append(args, launch.P(m.At), launch.I32(bytes/4))
	}
	l.Add(kSums, launch.Config{Grid: launch.Dim{X: device.SumParts}, Block: launch.Dim{X: threads}, PDL: true}, args...)
}
