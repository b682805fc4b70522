package peers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"time"
)

// ErrSilent reports a peer from which nothing came in time.
var ErrSilent = errors.New("the peer is silent")

// Beat is a question of the leader that came back.
type Beat struct {
	RTT time.Duration
	// Offset is the worker's clock less the leader's, measured as NTP does (RFC 5905): it is wrong by at
	// most half of RTT.
	Offset time.Duration
}

// beatBytes is a question, the leader's clock, and an answer, both clocks.
const beatBytes = 16

// Ping asks the worker at the other end of c every interval until it fails, and tells each answer. An
// error that wraps ErrSilent comes when no answer has come for that long. now is the leader's clock in ns.
//
// It keeps a thread of its own, so that busy goroutines delay it as little as the operating system lets them.
func Ping(c net.Conn, every, timeout time.Duration, now func() int64, heard func(Beat)) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var b [beatBytes]byte
	le := binary.LittleEndian
	for {
		sent := now()
		le.PutUint64(b[:], uint64(sent))
		if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
			return err
		}
		if _, err := c.Write(b[:8]); err != nil {
			return silent(err, timeout)
		}
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return silent(err, timeout)
		}
		back := now()
		if got := int64(le.Uint64(b[:])); got != sent {
			return fmt.Errorf("%w: an answer to a question of %d, not %d", ErrWire, got, sent)
		}
		worker := int64(le.Uint64(b[8:]))
		heard(Beat{time.Duration(back - sent), time.Duration(worker - sent - (back-sent)/2)})
		time.Sleep(every - time.Duration(now()-sent))
	}
}

// Answer answers the questions of a leader until it fails, with ErrSilent when none has come for that long.
// now is the worker's clock in ns. It keeps a thread of its own.
func Answer(c net.Conn, timeout time.Duration, now func() int64) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var b [beatBytes]byte
	for {
		if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, b[:8]); err != nil {
			return silent(err, timeout)
		}
		binary.LittleEndian.PutUint64(b[8:], uint64(now()))
		if _, err := c.Write(b[:]); err != nil {
			return silent(err, timeout)
		}
	}
}

// silent is err, as ErrSilent where a deadline has passed.
func silent(err error, timeout time.Duration) error {
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return fmt.Errorf("%w for %v", ErrSilent, timeout)
	}
	return err
}
