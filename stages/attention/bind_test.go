package attention

import (
	"slices"
	"strings"
	"testing"

	"krater/kernels/device"
	"krater/stages/model"
)

// asked is a Binder that notes which roles it is asked for. joint: it has matrices as one.
type asked struct {
	roles []string
	joint bool
}

func (a *asked) Vector(roles ...string) device.Mat {
	a.roles = append(a.roles, roles...)
	return device.Mat{}
}

func (a *asked) Norm(role string) device.Mat { return a.Vector(role) }

func (a *asked) Ones(int) device.Mat { return device.Mat{} }

func (a *asked) Made(role string, _, _ int, _ func([]float32) []float32, more ...string) device.Mat {
	return a.Vector(append(more, role)...)
}

func (a *asked) Weight(role string) device.Weight {
	a.roles = append(a.roles, role)
	return device.Weight{}
}

func (a *asked) Joint(_ string, roles ...string) (device.Weight, bool) {
	if a.joint {
		a.roles = append(a.roles, roles...)
	}
	return device.Weight{}, a.joint
}

func (a *asked) KVB(role string, _, _, _, _ int) device.KVB {
	a.roles = append(a.roles, role)
	return device.KVB{}
}

// TestBind: a stage asks for exactly the tensors that its mixer lists, joint or apart.
func TestBind(t *testing.T) {
	mla := model.MLA{Heads: 2, KVRank: 8, Nope: 4, RopeDim: 2, VDim: 4}
	compressed := mla
	compressed.QRank = 6
	sparse, shared := compressed, compressed
	sparse.Index = model.Indexer{Heads: 3, Dim: 4, TopK: 5}
	shared.Index = model.Indexer{TopK: 5, Shared: true}
	pooled := sparse
	pooled.RopeDim, pooled.Index.Pool = 0, 4
	gqa := model.GQA{Heads: 4, KVHeads: 2, HeadDim: 8}
	whole := gqa
	whole.Bias, whole.OutBias, whole.Sinks, whole.QKNorm = true, true, true, true
	gated := whole
	gated.Gate = true
	apart := device.DeltaNet{KeyHeads: 2, ValueHeads: 4, KeyDim: 8, ValueDim: 8, Taps: 4}
	rows := apart
	rows.Floor = -5
	byHead := apart
	byHead.ByKeyHead = true
	values := gqa
	values.QKNorm, values.ValueNorm = true, true
	keys, borrowed := values, values
	keys.KeyValues, borrowed.Shared = true, true
	indexed, local := gqa, gqa
	indexed.Index = model.BlockIndex{Heads: 3, Dim: 4, Block: 2, Chosen: 5}
	local.Index = indexed.Index
	local.Index.Local = 1
	for _, m := range []model.Mixer{mla, compressed, sparse, shared, pooled, gqa, whole, gated, values, keys, borrowed, indexed, local, model.DeltaNet{Sizes: apart}, model.DeltaNet{Sizes: rows}, model.DeltaNet{Sizes: byHead}} {
		var want []string
		for _, x := range m.Tensors(16) {
			want = append(want, x.Role)
		}
		slices.Sort(want)
		for _, joint := range []bool{false, true} {
			b := &asked{joint: joint}
			if _, err := Bind(m, b); err != nil {
				t.Fatal(err)
			}
			if slices.Sort(b.roles); !slices.Equal(b.roles, want) {
				t.Errorf("%+v, joint %t: bound %v, the mixer lists %v", m, joint, b.roles, want)
			}
		}
	}
	if _, err := Bind(model.Bounded{Mixer: gqa}, &asked{}); err == nil || !strings.Contains(err.Error(), "model.Bounded") {
		t.Errorf("a mixer without a stage: %v", err)
	}
}
