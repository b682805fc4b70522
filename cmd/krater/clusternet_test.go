package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krater/transport/api"
)

// inNetwork: the test runs in a network namespace of its own.
const inNetwork = "TEST_IN_NETWORK"

// cable is an Ethernet cable from a bridge of this namespace to a namespace of its own. The ends are TAP devices, and a
// goroutine for each direction carries frames: kernels without netem delay and lose nothing by themselves.
type cable struct {
	host  *exec.Cmd      // a process in the namespace
	delay atomic.Int64   // nanoseconds of a frame in one direction
	lost  atomic.Int64   // frames of a thousand that do not arrive
	cut   [2]atomic.Bool // to the host, from it
}

// newCable makes the namespace with one device, which has the address.
func newCable(t *testing.T, name, bridge, address string) *cable {
	t.Helper()
	c := &cable{host: exec.Command("unshare", "--net", "sleep", "infinity")}
	c.host.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.host.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.host.Process.Kill(); c.host.Wait() })
	near, far := tap(t, name+"n"), tap(t, name+"f")
	pid := fmt.Sprint(c.host.Process.Pid)
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for { // until unshare has made the namespace
		ns, err := os.Readlink("/proc/" + pid + "/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		if ns != own {
			break
		}
		time.Sleep(time.Millisecond)
	}
	ip(t, "link", "set", name+"n", "master", bridge, "up")
	ip(t, "link", "set", name+"f", "netns", pid)
	for _, line := range []string{"link set lo up", "addr add " + address + "/24 dev " + name + "f", "link set " + name + "f up"} {
		tool(t, append(c.enter(), append([]string{"ip"}, strings.Fields(line)...)...)...)
	}
	go c.carry(0, near, far)
	go c.carry(1, far, near)
	return c
}

// enter starts a program in the namespace.
func (c *cable) enter() []string {
	return []string{"nsenter", "--net", "--target", fmt.Sprint(c.host.Process.Pid)}
}

// carry copies frames in one direction, until the devices are closed.
func (c *cable) carry(direction int, from, to *os.File) {
	type frame struct {
		data []byte
		due  time.Time
	}
	queue := make(chan frame, 4096)
	go func() {
		for f := range queue {
			time.Sleep(time.Until(f.due))
			to.Write(f.data) // a device that is down refuses frames
		}
	}()
	defer close(queue)
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if c.cut[direction].Load() || rand.Int64N(1000) < c.lost.Load() {
			continue
		}
		select {
		case queue <- frame{append([]byte(nil), buf[:n]...), time.Now().Add(time.Duration(c.delay.Load()))}:
		default: // a full queue loses frames, as a switch does
		}
	}
}

// tap opens a new TAP device.
func tap(t *testing.T, name string) *os.File {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), name)
	t.Cleanup(func() { f.Close() })
	return f
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	tool(t, append([]string{"ip"}, args...)...)
}

// tool runs a program that has to succeed.
func tool(t *testing.T, line ...string) {
	t.Helper()
	if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(line, " "), err, out)
	}
}

// TestClusterOverNetworks: a leader and two workers, each with a network of its own, over cables that are slow, lose frames, are cut,
// or carry frames in one direction only. Every answer is that of one process, and so is each line of a durable batch, once.
func TestClusterOverNetworks(t *testing.T) {
	if testing.Short() {
		t.Skip("the nightly run has it")
	}
	if os.Getenv(inNetwork) == "" {
		enterNetwork(t)
		return
	}
	const requests, tokens = 6, 60
	ip(t, "link", "set", "lo", "up")
	ip(t, "link", "add", "krbr", "type", "bridge")
	ip(t, "addr", "add", "10.9.0.1/24", "dev", "krbr")
	ip(t, "link", "set", "krbr", "up")
	want, lines := alone(t, requests, tokens), clusterLines(t, requests, tokens)
	cables := []*cable{newCable(t, "kra", "krbr", "10.9.0.2"), newCable(t, "krb", "krbr", "10.9.0.3")}
	r := &clusterRig{t: t, workers: make([]*program, 2), by: func(i int) []string { return cables[i].enter() }}
	r.open("10.9.0.1:0", "--peer-timeout", "1s", "--batch-dir", t.TempDir())
	for _, x := range []struct {
		name string
		set  func()
		lost bool // the cluster goes on without the worker
	}{
		{"20 ms away", func() { cables[0].delay.Store(20e6) }, false},
		{"one of a hundred frames lost", func() { cables[1].lost.Store(10) }, false},
		{"cut", func() { cables[0].cut[0].Store(true); cables[0].cut[1].Store(true) }, true},
		{"frames to the worker only", func() { cables[1].cut[1].Store(true) }, true},
		{"frames from the worker only", func() { cables[1].cut[0].Store(true) }, true},
		{"no carrier", func() { ip(t, "link", "set", "kran", "down") }, true},
	} {
		before, began := strings.Count(r.leader.err.String(), "the cluster serves"), time.Now()
		batch := make(chan outcome, 1)
		go func() { batch <- krater(t, "", "batch", "submit", lines, "--url="+r.base, "--wait", "--json") }()
		r.ask(want, tokens, func() {
			time.Sleep(30 * time.Millisecond)
			x.set()
		})
		t.Logf("%s: %v", x.name, time.Since(began).Round(time.Millisecond))
		for _, c := range cables {
			c.delay.Store(0)
			c.lost.Store(0)
			c.cut[0].Store(false)
			c.cut[1].Store(false)
		}
		ip(t, "link", "set", "kran", "up")
		r.compareLines(<-batch, want)
		if x.lost {
			r.leader.err.until(t, "the worker back after "+x.name, r.leader.done, func(text string) bool {
				return strings.Count(text, "the cluster serves") >= before+2
			})
		} else if n := strings.Count(r.leader.err.String(), "the cluster serves"); n != before {
			t.Errorf("%s: the cluster began anew %d times", x.name, n-before)
		}
	}
	r.ask(want, tokens, func() {})
}

// clusterLines is a file with the requests of complete as lines of a batch.
func clusterLines(t testing.TB, n, tokens int) string {
	t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"custom_id":"%d","method":"POST","url":"/v1/completions","body":{"prompt":%q,"max_tokens":%d,"ignore_eos":true,"temperature":%g,"seed":%d}}`+"\n", i, clusterPrompt(i), tokens, float64(i%2)*0.8, i)
	}
	return write(t, "lines.jsonl", b.String())
}

// compareLines compares the answers of a batch of clusterLines, each there once, with those of one process.
func (r *clusterRig) compareLines(o outcome, want []string) {
	r.t.Helper()
	if o.status != 0 {
		r.t.Errorf("%+v", o)
		return
	}
	left := make(map[string]string, len(want))
	for i, text := range want {
		left[fmt.Sprint(i)] = text
	}
	for line := range strings.Lines(answers(r.t, "", "batch", "fetch", decode[api.Batch](r.t, o.out).ID, "--url="+r.base)) {
		a := decode[struct {
			ID       string `json:"custom_id"`
			Response struct {
				Body struct {
					Choices []struct{ Text string }
				}
			}
		}](r.t, line)
		if text, ok := left[a.ID]; !ok || len(a.Response.Body.Choices) != 1 || a.Response.Body.Choices[0].Text != text {
			r.t.Errorf("a line of the batch: %s, want once %q", line, text)
		}
		delete(left, a.ID)
	}
	if len(left) != 0 {
		r.t.Errorf("%d lines of the batch have no answer", len(left))
	}
}

// enterNetwork runs the test in a namespace of its own, in another process.
func enterNetwork(t *testing.T) {
	for _, name := range []string{"unshare", "nsenter", "ip"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(err)
		}
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skip(err)
	}
	line := []string{"unshare", "--net"}
	if os.Getuid() != 0 {
		line = append(line, "--map-root-user")
	}
	if out, err := exec.Command(line[0], append(line[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("no network of its own for a process: %v: %s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	line = append(line, self, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd := exec.CommandContext(t.Context(), line[0], line[1:]...)
	cmd.Env = append(os.Environ(), inNetwork+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
