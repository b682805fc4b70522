package rope

import "unsafe"

var pure = Funcs{Pairs: purePairs, Halves: pureHalves}

func purePairs(x, table *float32, heads, stride, dim int) {
	angles := unsafe.Slice(table, dim)
	for h := range heads {
		head := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(x), 4*h*stride)), dim)
		for i := 0; i < dim; i += 2 {
			u, v := head[i], head[i+1]
			c, s := angles[i], angles[i+1]
			head[i], head[i+1] = u*c-v*s, v*c+u*s
		}
	}
}

func pureHalves(x, table *float32, heads, stride, dim int) {
	angles := unsafe.Slice(table, dim)
	for h := range heads {
		head := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(x), 4*h*stride)), dim)
		for i := range dim / 2 {
			u, v := head[i], head[i+dim/2]
			c, s := angles[2*i], angles[2*i+1]
			head[i], head[i+dim/2] = u*c-v*s, v*c+u*s
		}
	}
}
