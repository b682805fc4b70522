package cpu

import "unsafe"

// ShareEverything makes every operator use the team, however little its work.
func (d *Device) ShareEverything() { d.wakeNs = 0 }

// OnWillNeed has f see what is asked to be read ahead, until the function returned is called.
func OnWillNeed(f func(p unsafe.Pointer, n int)) (end func()) {
	before := willNeed
	willNeed = f
	return func() { willNeed = before }
}
