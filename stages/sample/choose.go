package sample

// topK returns the k most preferred tokens of a row in no order; all of them when k is larger.
//
// Tokens that beat the worst of the best so far are collected; when the collection is twice as
// large as needed, a selection halves it and raises the bar. So nearly every token costs one
// comparison.
func (s *scratch) topK(row []float32, k int) []scored {
	k = min(k, len(row))
	buf := s.best[:0]
	room := 2*k + 64
	bar := negInf
	for i, x := range row {
		// Equal logits come with rising ids, so the earlier one stays: the comparison is strict,
		// except that at first even -Inf is taken.
		if x > bar || len(buf) < k {
			buf = append(buf, scored{float64(x), int32(i)})
			if len(buf) == room {
				partition(buf, k)
				buf = buf[:k]
				bar = float32(last(buf).w)
			}
		}
	}
	s.best = buf
	if len(buf) > k {
		partition(buf, k)
	}
	return buf[:k]
}

// partition puts the k first elements of the order to the front (quickselect).
func partition(a []scored, k int) {
	for len(a) > 16 {
		n := split(a)
		switch {
		case n == k:
			return
		case n > k:
			a = a[:n]
		default:
			a, k = a[n:], k-n
		}
	}
	insertionSort(a)
}

// split moves the elements before some pivot to the front, the pivot last among them, and returns
// how many there are: at least 1 and fewer than all. len(a) > 2.
func split(a []scored) int {
	// The pivot is the median of three from scattered places, because logits can have any pattern;
	// the places follow from the length, so a run can be repeated.
	n := len(a)
	h := uint64(n) * 0x9e3779b97f4a7c15
	i, j := h>>33%uint64(n-1), h>>13%uint64(n-2)
	if j >= i {
		j++
	}
	first, second, third := &a[i], &a[j], &a[n-1]
	if second.before(*first) {
		*first, *second = *second, *first
	}
	if third.before(*first) {
		*first, *third = *third, *first
	}
	if second.before(*third) {
		*second, *third = *third, *second
	}
	// The median is at the end now, and at least one element comes after it.
	pivot, m := *third, 0
	for i := range a[:n-1] {
		if c := a[i]; c.before(pivot) {
			a[i], a[m] = a[m], c
			m++
		}
	}
	a[m], a[n-1] = pivot, a[m]
	return m + 1
}

func insertionSort(a []scored) {
	for i := 1; i < len(a); i++ {
		for j := i; j > 0 && a[j].before(a[j-1]); j-- {
			a[j], a[j-1] = a[j-1], a[j]
		}
	}
}

// topP keeps the fewest most preferred tokens of pool whose weights reach the share p of their sum,
// in place and in order. The token that reaches p is kept, so at least one is left.
func (s *scratch) topP(pool []scored, p, total float64) []scored {
	// Tokens below this bar have less than 1-p together, so none of them is needed: on a peaked
	// distribution a few are left of a whole vocabulary.
	bar := (1 - p) * total / float64(len(pool))
	list := s.part[:0]
	for _, c := range pool {
		if c.w >= bar {
			list = append(list, c)
		}
	}
	s.part = list
	edge := crossing(list, p*total)
	kept := pool[:0]
	for _, c := range pool {
		if !edge.before(c) {
			kept = append(kept, c)
		}
	}
	return kept
}

// crossing returns the element at which the sum of weights, in the order of preference, reaches
// need: a quickselect by weight. The last one if it never does (a matter of rounding only).
func crossing(a []scored, need float64) scored {
	for len(a) > 16 {
		n := split(a)
		sum := 0.0
		for _, c := range a[:n] {
			sum += c.w
		}
		if sum < need {
			a, need = a[n:], need-sum
		} else {
			a = a[:n]
		}
	}
	insertionSort(a)
	sum := 0.0
	for _, c := range a {
		if sum += c.w; sum >= need {
			return c
		}
	}
	return a[len(a)-1]
}
