// Package attention holds the attention blocks, one file for each kind of mixer
// (model.Mixer). Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 section 2.1)
// caches one compressed row a token for all heads; prompt rows use it in the expanded form,
// decoded rows in the absorbed form, which never expands keys and values. Grouped-query
// attention (arXiv 2305.13245) caches keys and values of few heads, each shared by several
// query heads.
package attention

import (
	"fmt"
	"reflect"

	"krater/kernels/device"
	"krater/stages"
	"krater/stages/model"
)

// Block is the attention of one layer: its weights, bound.
type Block interface {
	// New makes a stage that computes this block and those of all layers with an equal
	// mixer. It allocates scratch memory on dev for batches within lim.
	New(dev device.Device, lim stages.Limits, tables Tables) (Stage, error)
}

// Stage computes blocks. It owns scratch memory, so it computes one batch at a time.
type Stage interface {
	// Run appends to p that st.Delta is the output of b for st.Normed, and that what the mixer
	// keeps of the batch's rows is stored. kept has a cache for each of the mixer's State, in
	// that order: [slots of tokens, width] (with a window those of State.Paging), or of what is not Paged [sequences*rows, width], where
	// the rows of the sequence in slot s begin at s*rows.
	Run(p *stages.Program, st *stages.State, b Block, kept []device.KV, layer int)
	// Close frees the scratch memory.
	Close()
}

// Tables holds the cos/sin table of every rotation of a model, see RopeTable.
type Tables map[*model.RopeConfig]device.Mat

// Binder gives the weights of a layer by role, as the model keeps them. A fault is the
// Binder's to report; what it gives is empty then.
type Binder interface {
	// Vector returns a tensor as the files hold it, [n] as [1, n]; of several roles, their tensors one
	// after the other, F32.
	Vector(roles ...string) device.Mat
	// Norm returns the weight of a norm [1, n], to which the model's config adds 1 if the files lack it.
	Norm(role string) device.Mat
	// Ones returns the weight of a norm [1, n] that changes nothing.
	Ones(n int) device.Mat
	// Made returns a tensor as F32 [rows, cols], made of the values of the files; of several roles, their values one after the
	// other.
	Made(role string, rows, cols int, make func(values []float32) []float32, more ...string) device.Mat
	// Weight returns a matrix.
	Weight(role string) device.Weight
	// Joint returns the rows of several matrices with equal columns as one, called name, so
	// that a step has one product for all of them; false where they are kept apart.
	Joint(name string, roles ...string) (device.Weight, bool)
	// KVB is kv_b_proj [heads*(nope+v), rank].
	KVB(role string, heads, nope, v, rank int) device.KVB
}

// bind binds the weights of a layer, by the type of its mixer.
var bind = map[reflect.Type]func(m model.Mixer, b Binder) Block{}

// Register says how the weights of layers with a mixer of type M are bound.
func Register[M model.Mixer](f func(m M, b Binder) Block) bool {
	bind[reflect.TypeFor[M]()] = func(m model.Mixer, b Binder) Block { return f(m.(M), b) }
	return true
}

// Bind binds the weights of a layer with the mixer m.
func Bind(m model.Mixer, b Binder) (Block, error) {
	f, ok := bind[reflect.TypeOf(m)]
	if !ok {
		return nil, fmt.Errorf("attention: no stage computes %T", m)
	}
	return f(m, b), nil
}

// scratch is the memory a block owns.
type scratch []device.Buffer

// piece is a matrix to allocate; one without columns stays absent.
type piece struct {
	m    *device.Mat
	cols int
}

// alloc makes every piece [rows, cols] of the device's row type, or none.
func (b *scratch) alloc(dev device.Device, rows int, pieces []piece) error {
	for _, p := range pieces {
		if p.cols == 0 {
			continue
		}
		mat, err := device.AllocMat(dev, device.RowType(device.LayoutOf(dev)), rows, p.cols)
		if err != nil {
			b.free()
			return err
		}
		*b = append(*b, mat.Buf)
		*p.m = mat
	}
	return nil
}

// room allocates what x's rows take as integers for the layer w, if it wants
// them.
func (b *scratch) room(dev device.Device, x device.Mat, w *device.Weight) (stages.Input, error) {
	if !w.Integer() {
		return stages.NewInput(x, device.QRows{}), nil
	}
	q, err := device.AllocQRows(dev, x.Rows, x.Cols, w.Q.Group)
	if err != nil {
		b.free()
		return stages.Input{}, err
	}
	*b = append(*b, q.Q.Buf, q.Scale.Buf, q.Bias.Buf)
	return stages.NewInput(x, q), nil
}

func (b *scratch) free() {
	for _, buf := range *b {
		buf.Free()
	}
	*b = nil
}
