package cpu

import "time"

import "unsafe"

// ShareEverything makes every operator use the team, however little its work.
func (d *Device) ShareEverything() { d.wakeNs = 0 }

// OnWillNeed has f see what is asked to be read ahead, until the function returned is called.
func OnWillNeed(f func(p unsafe.Pointer, n int)) (end func()) {
	before := willNeed
	willNeed = f
	return func() { willNeed = before }
}

// SpinFor changes how long workers of devices that are made from now on look for work, until the function that it returns is called.
func SpinFor(d time.Duration) (restore func()) {
	before := spinTime
	spinTime = d
	return func() { spinTime = before }
}

// Parked returns how many workers do not look for work.
func (d *Device) Parked() (n int) {
	for _, c := range d.team.crews {
		n += int(c.idle.Load())
	}
	return n
}
