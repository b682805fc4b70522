package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/cluster"
	"krater/actors/local"
	"krater/actors/local/config"
	"krater/cmd/krater/console"
	"krater/cmd/krater/version"
	"krater/stages/source"
	"krater/transport/certs"
	"krater/transport/peers"
)

// WorkerCmd is a member of a cluster that computes some layers.
type WorkerCmd struct {
	console.LogFlags
	source.Folder
	config.DeviceOptions
	config.RankOptions
	config.CacheOptions
	Join        string        `help:"Address of the leader's --worker-listen; default: LWS_LEADER_ADDRESS with --join-port." placeholder:"HOST:PORT"`
	JoinPort    int           `help:"Port of the leader where --join names none." default:"7070"`
	Listen      string        `help:"Address on which the worker before this one connects; port 0 takes a free one. Default: any port of the address by which the leader is reached." placeholder:"HOST:PORT"`
	Advertise   string        `help:"Host, or host and port, by which other members reach this one, if it is not what --listen says." placeholder:"HOST"`
	WorkerCerts string        `help:"Folder with the worker's certificates, from krater certs." type:"path" required:"" placeholder:"DIR"`
	WorkerName  string        `help:"Name of the worker in logs, and of its pair in --worker-certs if it has one of its own; default: the host's name." placeholder:"NAME"`
	PeerTimeout time.Duration `help:"Time after which a leader that is silent is lost; the worker then joins again." default:"2s"`
}

// rejoin bounds the time between two attempts to join.
const (
	rejoinFirst = 200 * time.Millisecond
	rejoinMost  = 10 * time.Second
)

// Run implements the command: it is a member of a cluster until a signal comes or the leader refuses it.
func (f *WorkerCmd) Run(e *console.Env) error {
	log, err := f.Logger(e)
	if err != nil {
		return err
	}
	defer e.Shown().Close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	w, err := f.open(ctx, e, log)
	if err != nil {
		return err
	}
	defer w.close()
	pause := time.Duration(0)
	for {
		began := time.Now()
		err := w.join(ctx)
		if ctx.Err() != nil {
			log.Info().Msg("stopped")
			return nil
		}
		if errors.Is(err, cluster.ErrRefused) {
			return err
		}
		log.Warn().Str("leader", w.leader).Err(err).Msg("not a member of a cluster")
		if pause = min(max(2*pause, rejoinFirst), rejoinMost); time.Since(began) > time.Minute {
			pause = rejoinFirst
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// worker is a worker at work.
type worker struct {
	*network
	log     zerolog.Logger
	name    string
	address string
	host    *local.Worker
}

func (f *WorkerCmd) open(ctx context.Context, e *console.Env, log zerolog.Logger) (*worker, error) {
	leader, err := f.leaderAddress()
	if err != nil {
		return nil, err
	}
	w := &worker{log: log, name: f.WorkerName, network: &network{leader: leader, limit: f.PeerTimeout}}
	if w.name == "" {
		if w.name, err = os.Hostname(); err != nil {
			w.name = certs.Worker
		}
	}
	if w.id, err = certs.Load(f.WorkerCerts, w.name, certs.Worker); err != nil {
		return nil, fmt.Errorf("--worker-certs: %w", err)
	}
	listen := f.Listen
	if listen == "" {
		if listen, err = localAddress(leader); err != nil {
			return nil, err
		}
	}
	if w.lis, err = peers.Listen(listen, w.id, log); err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	if w.address, err = advertised(f.Advertise, w.lis.Addr()); err != nil {
		return nil, errors.Join(err, w.lis.Close())
	}
	options := config.Default().Beside(f.DeviceOptions, f.RankOptions, f.CacheOptions)
	c := local.Config{Model: f.Model, Options: options, Log: log, Machine: e.Here(), Report: console.ReportTo(log, e.Shown())}
	if w.host, err = local.NewWorker(c, readRate(options.ThreadCount())); err != nil {
		return nil, errors.Join(err, w.lis.Close())
	}
	spareProcessor()
	log.Info().Str("leader", leader).Str("address", w.address).Str("name", w.name).Msg("joining")
	return w, nil
}

func (w *worker) close() {
	w.host.Close()
	w.lis.Close()
}

// join is a member until the leader is lost.
func (w *worker) join(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, end, err := peers.JoinControl(ctx, w.leader, w.id)
	if err != nil {
		return err
	}
	defer end()
	index, _ := strconv.Atoi(os.Getenv(lwsIndex)) // 0 where there is none
	return cluster.Work(ctx, c, cluster.WorkerOptions{
		Host: w.host, Network: w.network, Version: version.Number, Name: w.name, Index: index, Address: w.address, Leader: certs.Leader,
		Timeout: w.limit, Log: w.log,
	})
}

// leaderAddress is where the leader listens.
func (f *WorkerCmd) leaderAddress() (string, error) {
	join := cmp.Or(f.Join, os.Getenv(lwsLeader))
	if join == "" {
		return "", errors.New("--join HOST:PORT: which leader?")
	}
	if _, _, err := net.SplitHostPort(join); err == nil {
		return join, nil
	}
	return net.JoinHostPort(join, strconv.Itoa(f.JoinPort)), nil
}

// localAddress is any port of the address by which this machine reaches another.
func localAddress(other string) (string, error) {
	c, err := net.Dial("udp", other) // sends nothing
	if err != nil {
		return "", fmt.Errorf("--join %s: %w", other, err)
	}
	defer c.Close()
	host, _, err := net.SplitHostPort(c.LocalAddr().String())
	return net.JoinHostPort(host, "0"), err
}

// advertised is the address that other members connect to.
func advertised(given string, lis net.Addr) (string, error) {
	host, port, err := net.SplitHostPort(lis.String())
	if err != nil {
		return "", err
	}
	if given != "" {
		if _, _, err := net.SplitHostPort(given); err == nil {
			return given, nil
		}
		return net.JoinHostPort(given, port), nil
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return "", fmt.Errorf("--listen %s: others cannot connect to this address; --advertise says which one they can", lis)
	}
	return lis.String(), nil
}
