package dispatch

import (
	"slices"
	"testing"
)

// TestBrought: experts with the most rows are copied, as many as the share says, and the others are left in their order.
func TestBrought(t *testing.T) {
	work := []Rows{{3, 1}, {5, 4}, {7, 1}, {8, 2}, {9, 4}, {11, 1}}
	for _, x := range []struct {
		share, most   int
		brought, left []int32
	}{
		{0, 9, nil, []int32{0, 1, 2, 4, 5}},
		{51, 9, nil, []int32{0, 1, 2, 4, 5}},     // 0.996 of an expert
		{52, 9, []int32{1}, []int32{0, 2, 4, 5}}, // 1.02
		{154, 9, []int32{1, 4, 0}, []int32{2, 5}},
		{128, 2, []int32{1, 4}, []int32{0, 2, 5}},
		{128, 0, nil, []int32{0, 1, 2, 4, 5}},
		{256, 9, []int32{1, 4, 0, 2, 5}, []int32{}},
	} {
		brought, left := Brought(nil, []int32{0, 1, 2, 4, 5}, work, x.share, x.most)
		if !slices.Equal(brought, x.brought) || !slices.Equal(left, x.left) {
			t.Errorf("share %d, at most %d: %v brought, %v left; want %v, %v", x.share, x.most, brought, left, x.brought, x.left)
		}
	}
}
