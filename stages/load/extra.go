package load

import (
	"encoding/binary"
	"fmt"
	"math"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/model"
)

// Extra describes the biases and the activation of a model's routed experts, without memory.
func Extra(cfg *model.Config) device.Extra {
	x, _ := extraOf(cfg, 0)
	return x
}

// extraOf describes them with biases that lie at at and behind, and returns where these end.
func extraOf(cfg *model.Config, at int) (x device.Extra, end int) {
	x.Act = cfg.MoE.Act
	if !cfg.MoE.Biases {
		return x, at
	}
	x.B13 = device.NewMat(nil, tensor.F32, 1, 2*cfg.MoE.FF)
	x.B2 = device.NewMat(nil, tensor.F32, 1, cfg.Hidden)
	x.B13.Off = at
	x.B2.Off = at + aligned(x.B13.Bytes())
	return x, x.B2.Off + aligned(x.B2.Bytes())
}

// in returns the extra with its biases in buf.
func in(x device.Extra, buf device.Buffer) device.Extra {
	if x.B13.Rows > 0 {
		x.B13.Buf, x.B2.Buf = buf, buf
	}
	return x
}

// putExtra writes an expert's biases to a slot or another piece of host memory.
func (b *binder) putExtra(dst []byte, x device.Extra, n model.FFNNames) error {
	if x.B13.Rows == 0 {
		return nil
	}
	f := make([]float32, max(x.B13.Cols, x.B2.Cols))
	for _, bias := range []struct {
		m     device.Mat
		names []string
	}{{x.B13, []string{n.GateBias, n.UpBias}}, {x.B2, []string{n.DownBias}}} {
		if err := b.rows(bias.names...).fill(f[:bias.m.Cols]); err != nil {
			return err
		}
		for i, v := range f[:bias.m.Cols] {
			binary.LittleEndian.PutUint32(dst[bias.m.Off+4*i:], math.Float32bits(v))
		}
	}
	return nil
}

// extra binds the biases and the activation of a routed expert.
func (b *binder) extra(dev device.Device, n model.FFNNames) device.Extra {
	x, bytes := extraOf(b.cfg, 0)
	if bytes == 0 || b.err != nil {
		return x
	}
	buf, err := dev.Alloc(bytes)
	if err == nil {
		b.parts.bufs = append(b.parts.bufs, buf)
		b.parts.WeightBytes += int64(x.Bytes())
		b.parts.MadeBytes += int64(bytes)
		if host := buf.Host(); host != nil {
			err = b.putExtra(host, x, n)
		} else {
			err = b.uploaded(dev, buf, x, n)
		}
	}
	if err != nil {
		b.err = fmt.Errorf("load: %s: %w", n.GateBias, err)
		return x
	}
	if dev == b.dev {
		b.bound(int64(x.Bytes()))
	}
	return in(x, buf)
}

// extraBeside is extra in the kind of memory that the expert's matrices are in.
func (b *binder) extraBeside(matrix device.Buffer, n model.FFNNames) device.Extra {
	x, bytes := extraOf(b.cfg, 0)
	if bytes == 0 || b.err != nil {
		return x
	}
	if matrix.Host() == nil {
		return b.extra(b.dev, n)
	}
	room := make(hostBytes, bytes)
	if err := b.putExtra(room, x, n); err != nil {
		b.err = fmt.Errorf("load: %s: %w", n.GateBias, err)
	}
	b.parts.WeightBytes += int64(x.Bytes())
	b.parts.MadeBytes += int64(bytes)
	return in(x, room)
}

// uploaded writes the biases to memory that the host cannot address.
func (b *binder) uploaded(dev device.Device, buf device.Buffer, x device.Extra, n model.FFNNames) error {
	room := make([]byte, buf.Size())
	if err := b.putExtra(room, x, n); err != nil {
		return err
	}
	return device.Upload(dev, device.NewMat(buf, tensor.U8, 1, len(room)), room)
}
