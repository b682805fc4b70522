package cluster

import (
	"context"
	"net"
	"time"

	"krater/actors/cluster"
	"krater/actors/hop"
	"krater/actors/trace"
	"krater/kernels/cpu"
	"krater/transport/certs"
	"krater/transport/peers"
)

// network connects the members of a cluster by TCP and mutual TLS.
type network struct {
	id     *certs.Identity
	lis    *peers.Listener
	leader string // its address; of the leader itself: empty
	limit  time.Duration
}

var _ cluster.Network = (*network)(nil)

// Expect implements cluster.Network.
func (n *network) Expect(ctx context.Context, t cluster.Token, frameBytes int) (hop.Conn, error) {
	c, err := n.lis.Expect(ctx, peers.Token(t))
	if err != nil {
		return nil, err
	}
	return n.frames(c, peers.NameOf(c), frameBytes), nil
}

// Dial implements cluster.Network.
func (n *network) Dial(ctx context.Context, address, name string, t cluster.Token, frameBytes int) (hop.Conn, error) {
	c, err := n.dial(ctx, address, name, t)
	if err != nil {
		return nil, err
	}
	return n.frames(c, name, frameBytes), nil
}

func (n *network) dial(ctx context.Context, address, name string, t cluster.Token) (net.Conn, error) {
	if address == "" {
		address = n.leader
	}
	return peers.Dial(ctx, address, name, n.id, peers.Token(t))
}

func (n *network) frames(c net.Conn, name string, frameBytes int) hop.Conn {
	return peers.NewConn(c, peers.Options{Peer: name, FrameBytes: frameBytes, Timeout: n.limit})
}

// beats is how many heartbeats go in the time after which a member is lost.
const beats = 8

// Ping implements cluster.Network.
func (n *network) Ping(ctx context.Context, t cluster.Token, timeout time.Duration, heard func(rtt, offset time.Duration)) error {
	soon, cancel := context.WithTimeout(ctx, firstBeat)
	defer cancel()
	c, err := n.lis.Expect(soon, peers.Token(t))
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	return peers.Ping(c, timeout/beats, timeout, trace.Now, func(b peers.Beat) { heard(b.RTT, b.Offset) })
}

// firstBeat bounds how long the connection of heartbeats may take.
const firstBeat = 10 * time.Second

// Answer implements cluster.Network.
func (n *network) Answer(ctx context.Context, t cluster.Token, timeout time.Duration) error {
	c, err := n.reach(ctx, t)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	return peers.Answer(c, timeout, trace.Now)
}

// reach connects for heartbeats, which the leader expects when it has read that this worker opened its files.
func (n *network) reach(ctx context.Context, t cluster.Token) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, firstBeat)
	defer cancel()
	for {
		c, err := n.dial(ctx, "", certs.Leader, t)
		if err == nil {
			return c, nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// readRate measures how many bytes a second threads read, by which layers are divided; 0: unknown.
func readRate(threads int) float64 {
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		return 0
	}
	defer dev.Close()
	rate, err := dev.ReadBandwidth(threads)
	if err != nil {
		return 0
	}
	return rate.Median
}
