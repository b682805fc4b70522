package peers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"krater/transport/certs"
)

// Control between a worker and the leader is one gRPC stream for as long as the worker is a member:
// messages in both directions, which the caller encodes. gRPC runs inside the mutual TLS of the
// Listener. protoactor's remoting would be the other way; any peer can end a process that uses it with one call,
// it loses queued messages without a report when a peer is gone, and large messages delay all others.

// controlBytes bounds a message of control: part of a trace is the longest.
const controlBytes = 16 << 20

// Control is one end of a stream of control messages.
type Control interface {
	// Send is not safe for concurrent use.
	Send(message []byte) error
	// Receive waits for the next message. One goroutine calls it.
	Receive() ([]byte, error)
}

// ServeControl answers the workers that join at a listener until it is closed. join is called for each with its
// name, on a goroutine of its own; the stream ends when join returns.
func (l *Listener) ServeControl(join func(ctx context.Context, worker string, c Control) error) error {
	s := grpc.NewServer(
		grpc.Creds(handed{}), grpc.ForceServerCodec(raw{}), grpc.MaxRecvMsgSize(controlBytes), grpc.MaxSendMsgSize(controlBytes), grpc.MaxConcurrentStreams(1),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "krater.Group", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Join", ServerStreams: true, ClientStreams: true, Handler: func(_ any, stream grpc.ServerStream) (err error) {
			defer func() {
				if r := recover(); r != nil {
					l.log.Error().Str("cause", fmt.Sprint(r)).Bytes("stack", debug.Stack()).Msg("control of a worker failed")
					err = status.Error(codes.Internal, "the leader failed")
				}
			}()
			p, _ := peer.FromContext(stream.Context())
			info, ok := p.AuthInfo.(credentials.TLSInfo)
			if !ok || len(info.State.PeerCertificates) == 0 || len(info.State.PeerCertificates[0].DNSNames) == 0 {
				return status.Error(codes.Unauthenticated, "a certificate without a name")
			}
			return join(stream.Context(), info.State.PeerCertificates[0].DNSNames[0], serverEnd{stream})
		}}},
	}, nil)
	go func() {
		<-l.closed
		s.Stop()
	}()
	if err := s.Serve(controls{l}); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// JoinControl connects to the leader's listener. The stream ends with ctx.
func JoinControl(ctx context.Context, addr string, id *certs.Identity) (Control, func() error, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(handed{}), grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(controlBytes), grpc.MaxCallSendMsgSize(controlBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return dial(ctx, addr, certs.Leader, id, protocolControl)
		}),
		grpc.WithDisableRetry(), grpc.WithNoProxy(),
	)
	if err != nil {
		return nil, nil, err
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{StreamName: "Join", ServerStreams: true, ClientStreams: true}, "/krater.Group/Join")
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return clientEnd{stream}, conn.Close, nil
}

type serverEnd struct{ grpc.ServerStream }

func (e serverEnd) Send(m []byte) error { return e.SendMsg(&m) }

func (e serverEnd) Receive() (m []byte, err error) {
	err = e.RecvMsg(&m)
	return m, err
}

type clientEnd struct{ grpc.ClientStream }

func (e clientEnd) Send(m []byte) error { return e.SendMsg(&m) }

func (e clientEnd) Receive() (m []byte, err error) {
	err = e.RecvMsg(&m)
	return m, err
}

// raw is a codec of messages that are bytes already.
type raw struct{}

func (raw) Name() string { return "krater" }

func (raw) Marshal(v any) ([]byte, error) {
	m, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("a message of type %T", v)
	}
	return *m, nil
}

func (raw) Unmarshal(data []byte, v any) error {
	m, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("a message of type %T", v)
	}
	*m = append([]byte(nil), data...) // gRPC uses its memory again
	return nil
}

// handed are credentials of connections whose TLS handshake is over.
type handed struct{}

func (handed) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c, tlsInfo(c), nil
}

func (handed) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c, tlsInfo(c), nil
}

func tlsInfo(c net.Conn) credentials.AuthInfo {
	info := credentials.TLSInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	if t, ok := c.(*tls.Conn); ok {
		info.State = t.ConnectionState()
	}
	return info
}

func (handed) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (handed) Clone() credentials.TransportCredentials { return handed{} }
func (handed) OverrideServerName(string) error         { return nil }

// controls is the listener's connections of control, as a net.Listener.
type controls struct{ *Listener }

func (c controls) Accept() (net.Conn, error) {
	select {
	case conn := <-c.control:
		return conn, nil
	case <-c.closed:
		return nil, net.ErrClosed
	}
}
