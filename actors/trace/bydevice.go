package trace

import (
	"cmp"
	"slices"
)

// waitsForDevice reports whether the actor of an event of this kind may do nothing but wait
// for a device that computes apart from the host.
func (k Kind) waitsForDevice() bool {
	switch k {
	case Embed, Group, Head, Sample:
		return true
	}
	return false
}

// ofDevice reports whether a kind is a part of a step on a device that computes apart from the
// host.
func (k Kind) ofDevice() bool {
	switch k {
	case Device, DeviceEmbed, DeviceGroup, DeviceHead:
		return true
	}
	return false
}

// byDevice replaces the segments of a path in which an actor waited for a device by what the device
// was doing, or by the copy that the device waited for. While a pool computes experts that the
// device has requested in the middle of its step, the segment is the pool's, because the device
// continues with its answer.
func byDevice(tracks []Track, pieces []Piece, batch uint64) []Piece {
	pieces = instead(tracks, pieces, batch, Kind.waitsForDevice, func(k Kind) bool { return k == CopyWait || k.ofDevice() })
	return instead(tracks, pieces, batch, Kind.ofDevice, func(k Kind) bool { return k == Experts })
}

// instead replaces parts of those segments of a path by the events of some kinds that happened
// then.
func instead(tracks []Track, pieces []Piece, batch uint64, of, by func(Kind) bool) []Piece {
	var does []visit
	for t := range tracks {
		for i := range tracks[t].Events {
			if e := &tracks[t].Events[i]; e.Batch == batch && e.Ended > e.Started && by(e.Kind) {
				does = append(does, visit{t, i, e})
			}
		}
	}
	if len(does) == 0 {
		return pieces
	}
	slices.SortFunc(does, func(a, b visit) int { return cmp.Compare(a.e.Started, b.e.Started) })
	var cut []Piece
	for _, p := range pieces {
		if p.Wait || !of(tracks[p.Track].Events[p.Event].Kind) {
			cut = append(cut, p)
			continue
		}
		for _, v := range does {
			from, to := max(v.e.Started, p.From), min(v.e.Ended, p.To)
			if from >= to {
				continue
			}
			if p.From < from {
				before := p
				before.To = from
				cut = append(cut, before)
			}
			x := Piece{Track: v.track, Event: v.event, From: from, To: to}
			if v.e.Kind == CopyWait {
				x = Piece{Track: p.Track, Event: p.Event, From: from, To: to, Wait: true, Copy: true, Why: v.e.copyWanted()}
			}
			cut = append(cut, x)
			p.From = to
		}
		if p.From < p.To {
			cut = append(cut, p)
		}
	}
	return cut
}
