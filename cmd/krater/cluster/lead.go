package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/cluster"
	"krater/actors/local"
	"krater/actors/local/config"
	"krater/cmd/krater/version"
	"krater/stages/source"
	"krater/transport/certs"
	"krater/transport/peers"
)

// Flags are the flags of a leader.
type Flags struct {
	WorkerListen string        `help:"Address on which workers (krater worker) join, such as 0.0.0.0:7070. The model is then divided among --ranks processes: this one, the leader, has the embedding, the first layers and the head." placeholder:"HOST:PORT"`
	WorkerCerts  string        `help:"Folder with the leader's certificates, from krater certs." type:"path" placeholder:"DIR"`
	PeerTimeout  time.Duration `help:"Time after which a worker that is silent is lost." default:"2s"`
	OnLoss       string        `help:"What happens to requests when a worker is lost: ${enum}. replay computes them again on what is left, if the model fits there, or when the worker is back; their clients see a pause." enum:"replay,fail" default:"replay"`
	ReplayWait   time.Duration `help:"Time after which requests fail that no worker can take over." default:"5m"`
}

// On reports whether there is a cluster.
func (f *Flags) On() bool { return f.WorkerListen != "" }

// Check refuses flags that contradict each other.
func (f *Flags) Check(o *config.Options) error {
	switch {
	case !f.On() && f.WorkerCerts != "":
		return errors.New("--worker-certs goes with --worker-listen")
	case !f.On():
		return nil
	case f.WorkerCerts == "":
		return errors.New("--worker-listen needs --worker-certs: krater certs DIR makes them")
	case f.PeerTimeout < 100*time.Millisecond || f.PeerTimeout > time.Hour:
		return fmt.Errorf("--peer-timeout %v: want 100ms to 1h", f.PeerTimeout)
	case f.ReplayWait < 0:
		return fmt.Errorf("--replay-wait %v: want 0 or more", f.ReplayWait)
	}
	_, err := f.workers(o)
	return err
}

// The environment that a LeaderWorkerSet of Kubernetes gives its pods.
const (
	lwsLeader = "LWS_LEADER_ADDRESS"
	lwsSize   = "LWS_GROUP_SIZE"
	lwsIndex  = "LWS_WORKER_INDEX"
)

// workers returns the number of workers: the processes of --ranks, --pp-partition or the environment, less this one.
func (f *Flags) workers(o *config.Options) (int, error) {
	n, from := o.Ranks, "--ranks"
	if sizes, err := o.Sizes(); err != nil {
		return 0, err
	} else if n == 0 && len(sizes) > 0 {
		n, from = len(sizes), "--pp-partition"
	}
	if text := os.Getenv(lwsSize); n == 0 && text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			return 0, fmt.Errorf("%s=%q: not a number", lwsSize, text)
		}
		from = lwsSize
	}
	if n < 2 {
		return 0, fmt.Errorf("%s %d: with --worker-listen, --ranks is the number of processes, at least 2", from, n)
	}
	return n - 1, nil
}

// Lead is a leader at work.
type Lead struct {
	engine *local.Leader
	lis    *peers.Listener
	stop   context.CancelFunc
	failed chan struct{}
	err    error
}

// Lead starts to gather workers for a model. ready is called when the first pipeline serves.
func (f *Flags) Lead(c local.Config, made source.Synthetic, log zerolog.Logger, ready func(*actors.Gateway, *actors.Pipeline)) (*Lead, error) {
	n, err := f.workers(&c.Options)
	if err != nil {
		return nil, err
	}
	id, err := certs.Load(f.WorkerCerts, certs.Leader)
	if err != nil {
		return nil, fmt.Errorf("--worker-certs: %w", err)
	}
	c.Log = log
	engine, err := local.NewLeader(c, made, readRate(c.Options.ThreadCount()), ready)
	if err != nil {
		return nil, err
	}
	lis, err := peers.Listen(f.WorkerListen, id, log)
	if err != nil {
		return nil, fmt.Errorf("--worker-listen: %w", err)
	}
	spareProcessor()
	leader := cluster.NewLeader(cluster.LeaderOptions{
		Workers: n, Engine: engine, Network: &network{id: id, lis: lis, limit: f.PeerTimeout}, Version: version.Number,
		Timeout: f.PeerTimeout, Replay: f.OnLoss == "replay", ReplayWait: f.ReplayWait, Log: log,
	})
	ctx, stop := context.WithCancel(context.Background())
	l := &Lead{engine: engine, lis: lis, stop: stop, failed: make(chan struct{})}
	log.Info().Stringer("listen", lis.Addr()).Int("workers", n).Msg("waiting for workers")
	served := make(chan error, 1)
	go func() {
		served <- lis.ServeControl(func(ctx context.Context, name string, c peers.Control) error { return leader.Join(ctx, name, c) })
	}()
	go func() {
		defer close(l.failed)
		l.err = leader.Run(ctx)
		lis.Close()
		l.err = errors.Join(l.err, <-served)
	}()
	return l, nil
}

// spareProcessor gives Go one more thread for goroutines than there are processors: heartbeats find one when kernels
// use all others.
func spareProcessor() { runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1) }

// Failed is closed when the leader has ended.
func (l *Lead) Failed() <-chan struct{} { return l.failed }

// Err is why it has ended.
func (l *Lead) Err() error { return l.err }

// Close ends the pipeline, lets the workers go and frees the model.
func (l *Lead) Close() error {
	l.stop()
	<-l.failed
	l.engine.Close()
	return l.err
}
