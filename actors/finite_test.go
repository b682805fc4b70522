package actors

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/load"
)

// spoil gives a loaded model another matrix, in which a row has a value.
func spoil(t *testing.T, l *loaded, of *device.Mat, row int, value float32) {
	t.Helper()
	table := *of
	own, err := device.AllocMat(l.dev, table.DType, table.Rows, table.Cols)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Buf.Free)
	s, err := l.dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	size := table.DType.Size()
	rows := make([]byte, table.Rows*table.Cols*size)
	s.CopyOut(rows, table)
	if err := s.Synchronize(); err != nil {
		t.Fatal(err)
	}
	bits := binary.LittleEndian.AppendUint32(nil, math.Float32bits(value))
	copy(rows[row*table.Cols*size:], bytes.Repeat(bits[4-size:], table.Cols))
	s.CopyIn(own, rows)
	if err := s.Synchronize(); err != nil {
		t.Fatal(err)
	}
	*of = own
}

// TestNotFinite: a token whose keys and values are NaN or infinite fails the requests that have it,
// and no other, for every type of the cache, either kind of attention and devices with memory of
// their own, wherever it stands in the prompt. The error names layer and operator.
func TestNotFinite(t *testing.T) {
	for _, model := range []string{"deepseek_v2_lite", "qwen2"} {
		for _, kv := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F8E4M3, tensor.I8} {
			for i, value := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
				t.Run(fmt.Sprintf("%s/%v/%v", model, kv, value), func(t *testing.T) {
					o := setup{dir: golden(model), groups: 2, depth: 2, chunk: 3, share: 8, kv: kv, limits: stages.Limits{Tokens: 40, Seqs: 4, Blocks: 40, BlockTokens: 4}}
					o.simulated = i == 1
					r := newRig(t, o)
					spoil(t, r.loaded, &r.bound.Embed.Table, 7, value)
					gw := r.gateway(t)
					want, _ := whole(t, gw, asked([]int32{3, 1, 4, 1, 5}, 6, 1))
					bad, err := gw.Submit(context.Background(), asked([]int32{7, 7, 7, 7, 7, 9}, 6, 1))
					if err != nil {
						t.Fatal(err)
					}
					late, err := gw.Submit(context.Background(), asked([]int32{9, 9, 9, 9, 7, 9, 9, 9, 9}, 6, 1))
					if err != nil {
						t.Fatal(err)
					}
					good, err := gw.Submit(context.Background(), asked([]int32{3, 1, 4, 1, 5}, 6, 1))
					if err != nil {
						t.Fatal(err)
					}
					for at, st := range map[string]engine.Stream{"position 0": bad, "position 4": late} {
						events, _ := everything(st)
						last := events[len(events)-1]
						if last.Kind != engine.Failed || !strings.Contains(last.Err.Error(), "layer 0, StoreRows, "+at) {
							t.Errorf("the request with the token ends with %+v (%v), want layer, operator and %s", last, last.Err, at)
						}
					}
					if got, _ := finished(t, good); len(got) != len(want) || got[5].ID != want[5].ID || got[5].Logprob != want[5].Logprob {
						t.Errorf("the request beside it is another than alone: %v, want %v", got, want)
					}
				})
			}
		}
	}
}

// poisoned are operators of which one stores a value that is not finite.
type poisoned struct {
	load.Device
	layer int
}

func (d poisoned) Run(s device.Stream, l device.List) {
	for part := range l.Parts(d.Device) {
		if o := &part.Ops[0]; o.Kind == device.OpStoreRows && int(o.KV.Mark) == d.layer+1 {
			o.X.RowRange(o.X.Rows-1, o.X.Rows).F32s()[3] = float32(math.NaN())
		}
		d.Device.Run(s, part)
	}
}

// TestNotFiniteSomewhere: the error names the layer in which it begins, and says so where it
// begins behind the last keys and values.
func TestNotFiniteSomewhere(t *testing.T) {
	base := setup{dir: golden("deepseek_v2_lite"), groups: 2, limits: stages.Limits{Tokens: 40, Seqs: 4, Blocks: 40, BlockTokens: 4}}
	for _, c := range []struct {
		layer int // -1: behind all
		want  string
	}{{1, "layer 1, StoreRows, position 4: keys or values are NaN or infinite; they come from layer 0 behind"}, {-1, "the final norm or lm_head"}} {
		o := base
		if c.layer >= 0 {
			o.ops = func(d load.Device) load.Device { return poisoned{d, c.layer} }
		}
		var log bytes.Buffer
		o.log = zerolog.New(&log)
		r := newRig(t, o)
		if c.layer < 0 {
			spoil(t, r.loaded, &r.bound.Head.Norm.Norm, 0, float32(math.NaN()))
		}
		st, err := r.gateway(t).Submit(context.Background(), asked([]int32{3, 1, 4, 1, 5}, 6, 1))
		if err != nil {
			t.Fatal(err)
		}
		events, _ := everything(st)
		if last := events[len(events)-1]; last.Kind != engine.Failed || !strings.Contains(last.Err.Error(), c.want) {
			t.Errorf("ends with %+v (%v), want %q", last, last.Err, c.want)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(log.String(), c.want) {
			t.Errorf("the log does not have %q:\n%s", c.want, log.String())
		}
	}
}
