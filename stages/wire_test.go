package stages

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"

	"krater/kernels/device"
)

var wireLimits = Limits{Tokens: 8, Seqs: 3, LogitRows: 8, Blocks: 6, HostBlocks: 4, Snapshots: 2, BlockTokens: 4, Context: 24, Queues: 2, WindowBlocks: 6}

// wireStep is a step of a device that chooses tokens.
func wireStep() *Step {
	st := NewStep(testConfig(), wireLimits)
	st.draws = true
	return st
}

// every gives all fields of a struct values of their own.
func every(v reflect.Value, next *int64) {
	for i := range v.NumField() {
		*next++
		switch f := v.Field(i); f.Kind() {
		case reflect.Int, reflect.Int32:
			f.SetInt(*next)
		case reflect.Uint64:
			f.SetUint(uint64(*next) << 40)
		case reflect.Bool:
			f.SetBool(*next%2 == 0)
		case reflect.Float64:
			f.SetFloat(float64(*next) / 7)
		case reflect.Slice: // of numbers
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
			if e := f.Index(0); e.CanInt() {
				e.SetInt(*next)
			} else {
				e.SetUint(uint64(*next))
			}
		default:
			panic(f.Kind())
		}
	}
}

func wireText() *Step {
	b := mixed()
	b.Queue, b.UsesHost, b.Watched = 1, true, true
	b.Spans[0].Every, b.Spans[1].Windows = true, []int32{1, 3, 5}
	b.Moves = []Move{{Copy, 1, 2}, {Save, 3, 3}, {Load, 2, 0}, {SaveState, 2, 1}, {LoadState, 1, 2}, {CopyWindow, 4, 5}}
	next := int64(0)
	b.Draws = make([]device.Draw, 5) // 3 rows of the first span, and one of either other
	for i := range b.Draws {
		every(reflect.ValueOf(&b.Draws[i]).Elem(), &next)
	}
	return b
}

// TestStepTravels: what is read from the encoding of a step is that step, whatever is added to
// its parts later.
func TestStepTravels(t *testing.T) {
	for name, b := range map[string]*Step{"all": wireText(), "least": {Tokens: []int32{9}, Spans: []Span{{Span: device.Span{Len: 1, Blocks: []int32{0}}}}}} {
		from, to := wireStep(), wireStep()
		if err := from.Fill(b); err != nil {
			t.Fatal(name, err)
		}
		data, err := from.AppendBinary(nil)
		if err != nil {
			t.Fatal(name, err)
		}
		for range 2 { // the second into memory that has been used
			if err := to.UnmarshalBinary(data); err != nil {
				t.Fatal(name, err)
			}
			again, err := to.AppendBinary(nil)
			if err != nil || !bytes.Equal(again, data) {
				t.Errorf("%s: read and written again: %x, %v, want %x", name, again, err, data)
			}
			for i, x := range []struct{ got, want any }{
				{to.Tokens, from.Tokens}, {to.Spans, from.Spans}, {to.Wanted, from.Wanted}, {to.Owner, from.Owner}, {to.Queue, from.Queue},
				{[]bool{to.AllLogits, to.UsesHost, to.Watched}, []bool{from.AllLogits, from.UsesHost, from.Watched}},
			} {
				if !reflect.DeepEqual(x.got, x.want) {
					t.Errorf("%s, %d: %+v, want %+v", name, i, x.got, x.want)
				}
			}
			if len(to.Draws) != len(from.Draws) || len(to.Moves) != len(from.Moves) {
				t.Errorf("%s: %d draws, %d moves", name, len(to.Draws), len(to.Moves))
			}
			for i := range from.Draws {
				if !reflect.DeepEqual(to.Draws[i], from.Draws[i]) {
					t.Errorf("%s: draw %d: %+v, want %+v", name, i, to.Draws[i], from.Draws[i])
				}
			}
			for i := range from.Moves {
				if to.Moves[i] != from.Moves[i] {
					t.Errorf("%s: move %d: %+v, want %+v", name, i, to.Moves[i], from.Moves[i])
				}
			}
		}
	}
}

// TestForeignSteps: bytes that are cut, changed or longer are refused, or are another step
// within the limits; the step that was there is gone then.
func TestForeignSteps(t *testing.T) {
	st := wireStep()
	if err := st.Fill(wireText()); err != nil {
		t.Fatal(err)
	}
	data, err := st.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	for n := range data {
		if err := st.UnmarshalBinary(data[:n]); !errors.Is(err, ErrBatch) {
			t.Errorf("%d of %d bytes: %v", n, len(data), err)
		}
	}
	if err := st.UnmarshalBinary(append(bytes.Clone(data), 0)); !errors.Is(err, ErrBatch) {
		t.Errorf("a byte more: %v", err)
	}
	rng, refused := rand.New(rand.NewPCG(1, 2)), 0
	for range 2000 {
		other := bytes.Clone(data)
		other[rng.IntN(len(other))] ^= byte(1 + rng.IntN(255))
		if err := st.UnmarshalBinary(other); err != nil {
			if refused++; !errors.Is(err, ErrBatch) || st.Total() != 0 && !errors.Is(err, errWire) {
				t.Fatalf("%x: %v, %d rows", other, err, st.Total())
			}
		}
	}
	if refused < 500 {
		t.Errorf("%d of 2000 changed steps were refused", refused)
	}
	st.From = &State{Step: st}
	if _, err := st.AppendBinary(nil); !errors.Is(err, ErrBatch) {
		t.Errorf("a step whose tokens are on a device: %v", err)
	}
}

// FuzzStep: any bytes are refused or are a step, which has one encoding.
func FuzzStep(f *testing.F) {
	from := wireStep()
	for _, b := range []*Step{wireText(), mixed()} {
		if err := from.Fill(b); err != nil {
			f.Fatal(err)
		}
		data, err := from.AppendBinary(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	st, again := wireStep(), wireStep()
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := st.UnmarshalBinary(data); err != nil {
			if !errors.Is(err, ErrBatch) {
				t.Error(err)
			}
			return
		}
		one, err := st.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := again.UnmarshalBinary(one); err != nil {
			t.Fatal(err)
		}
		if two, err := again.AppendBinary(nil); err != nil || !bytes.Equal(one, two) {
			t.Errorf("%x is written again as %x, %v", one, two, err)
		}
	})
}
