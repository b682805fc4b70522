package attention

import (
	"math"
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/model"
)

// RopeTable makes the cos/sin table [positions, dim] F32 on dev: row p holds the
// pairs cos(p*f), sin(p*f) of the dim/2 frequencies f, times cfg.CosSinScale.
func RopeTable(dev device.Device, cfg *model.RopeConfig, positions int) (device.Mat, error) {
	m, err := device.AllocMat(dev, tensor.F32, positions, cfg.Dim)
	if err != nil {
		return m, err
	}
	if m.Buf.Host() != nil {
		fillRope(m.F32s(), cfg, 0)
		return m, nil
	}
	s, err := dev.NewStream()
	if err != nil {
		m.Buf.Free()
		return device.Mat{}, err
	}
	defer s.Close()
	const chunk = 1024
	host := make([]float32, min(chunk, positions)*cfg.Dim)
	for from := 0; from < positions; from += chunk {
		n := min(chunk, positions-from)
		fillRope(host[:n*cfg.Dim], cfg, from)
		s.CopyIn(m.RowRange(from, from+n), unsafe.Slice((*byte)(unsafe.Pointer(&host[0])), 4*n*cfg.Dim))
		if err := s.Synchronize(); err != nil {
			m.Buf.Free()
			return device.Mat{}, err
		}
	}
	return m, nil
}

// fillRope writes the rows of the positions from..., as many as fit in rows.
func fillRope(rows []float32, cfg *model.RopeConfig, from int) {
	for p := 0; p*cfg.Dim < len(rows); p++ {
		row := rows[p*cfg.Dim : (p+1)*cfg.Dim]
		for i, f := range cfg.InvFreq {
			// The reference multiplies in float32; both factors and the product
			// are rounded so that large positions agree with it.
			sin, cos := math.Sincos(float64(float32(from+p) * float32(f)))
			row[2*i] = float32(cos * cfg.CosSinScale)
			row[2*i+1] = float32(sin * cfg.CosSinScale)
		}
	}
}
