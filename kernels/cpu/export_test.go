package cpu

// ShareEverything makes every operator use the team, however little its work.
func (d *Device) ShareEverything() { d.wakeNs = 0 }
