package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// clusterRig is a leader with its workers, each a process.
type clusterRig struct {
	t       testing.TB
	certs   string
	members string // the leader's address for workers
	base    string
	leader  *program
	workers []*program
	by      func(worker int) []string // the program that starts a worker, see launchBy; nil: none
	way     *slowWay                  // to worker 1; nil: the network's
	options []string                  // of workers
}

// newCluster starts a leader and workers, and waits until they serve.
func newCluster(t testing.TB, workers int, flags ...string) *clusterRig {
	t.Helper()
	r := &clusterRig{t: t, workers: make([]*program, workers), way: newSlowWay(t)}
	r.open("127.0.0.1:0", flags...)
	return r
}

// open is newCluster for a rig with other settings. Workers reach the leader at address.
func (r *clusterRig) open(address string, flags ...string) {
	t := r.t
	t.Helper()
	r.certs = filepath.Join(t.TempDir(), "certs")
	answers(t, "", "certs", r.certs)
	r.leader = launch(t, append([]string{
		"serve", "--listen", "127.0.0.1:0", "--worker-listen", address, "--worker-certs", r.certs, "--ranks", fmt.Sprint(len(r.workers) + 1),
		"--batch-dir", "off", "--threads", "1", "--max-seqs", "8", "--log-format", "json",
	}, flags...)...)
	line := r.leader.err.wait(t, "waiting for workers", r.leader.done)
	var said struct{ Listen string }
	if err := json.Unmarshal([]byte(line), &said); err != nil {
		t.Fatal(err)
	}
	r.members = said.Listen
	for i := range r.workers {
		r.start(i)
	}
	r.base = r.leader.address()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the leader:\n%s", r.leader.err)
			for i, w := range r.workers {
				t.Logf("worker %d:\n%s", i, w.err)
			}
		}
	})
}

// start starts a worker, also one that was killed.
func (r *clusterRig) start(i int) {
	var by []string
	if r.by != nil {
		by = r.by(i)
	}
	args := []string{"worker", "--join", r.members, "--worker-certs", r.certs, "--worker-name", fmt.Sprintf("w%d", i), "--threads", "1", "--log-format", "json"}
	if i == 1 && r.way != nil {
		args = append(args, "--listen", r.way.to, "--advertise", r.way.lis.Addr().String())
	}
	r.workers[i] = launchBy(r.t, by, append(args, r.options...)...)
}

// kill ends a worker without a word.
func (r *clusterRig) kill(i int) {
	r.workers[i].signal(syscall.SIGKILL)
	<-r.workers[i].done
}

// clusterPrompt is the i-th of the prompts of these tests.
func clusterPrompt(i int) string {
	return fmt.Sprintf("Tell me a story about %s, number %d.", []string{"a lighthouse", "the sea", "rain", "a ship", "bread"}[i%5], i)
}

// errUnavailable: no pipeline has had the requests for two seconds.
var errUnavailable = errors.New("unavailable")

// complete asks for a long answer, greedy or drawn with a seed, and returns its text.
func complete(ctx context.Context, base string, i, tokens int) (string, error) {
	body := fmt.Sprintf(`{"prompt":%q,"max_tokens":%d,"ignore_eos":true,"temperature":%g,"seed":%d,"stream":true}`, clusterPrompt(i), tokens, float64(i%2)*0.8, i)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	all, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return "", err
	case res.StatusCode == http.StatusServiceUnavailable && strings.Contains(string(all), `"code":"unavailable"`):
		return "", errUnavailable
	case res.StatusCode != http.StatusOK:
		return "", fmt.Errorf("status %d: %s", res.StatusCode, all)
	}
	var text strings.Builder
	for line := range strings.Lines(string(all)) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var chunk struct {
			Choices []struct{ Text string }
			Error   *struct{ Message string }
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return "", err
		}
		if chunk.Error != nil {
			return text.String(), fmt.Errorf("an answer failed: %s", chunk.Error.Message)
		}
		for _, c := range chunk.Choices {
			text.WriteString(c.Text)
		}
	}
	return text.String(), nil
}

// ask sends n requests at the same time, calls meanwhile, and compares the answers with those of one process.
func (r *clusterRig) ask(want []string, tokens int, meanwhile func()) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	var wg sync.WaitGroup
	for i, text := range want {
		wg.Go(func() {
			got, err := complete(ctx, r.base, i, tokens)
			if err != nil {
				r.t.Errorf("request %d: %v", i, err)
			} else if got != text {
				r.t.Errorf("request %d:\n%q, one process says\n%q", i, got, text)
			}
		})
	}
	meanwhile()
	wg.Wait()
}

// alone returns what one process answers.
func alone(t testing.TB, n, tokens int) []string {
	t.Helper()
	s := open(t, "--threads", "1", "--max-seqs", "8")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	want := make([]string, n)
	for i := range want {
		var err error
		if want[i], err = complete(ctx, s.base, i, tokens); err != nil {
			t.Fatal(err)
		}
	}
	return want
}

// TestCluster: three processes give the answers of one, also when a worker is killed or frozen in the middle of them, and
// when it has returned. The leader's page names a hop that is slow.
func TestCluster(t *testing.T) {
	const requests, tokens = 6, 60
	want := alone(t, requests, tokens)
	r := newCluster(t, 2, "--peer-timeout", "500ms")
	r.way.late.Store(int64(hopLate))
	r.ask(want, tokens, r.namesSlowHop)
	r.way.late.Store(0)
	for _, x := range []struct {
		name     string
		lose     func()
		reappear func()
	}{
		{"killed", func() { r.kill(1) }, func() { r.start(1) }},
		{"frozen", func() { r.workers[0].signal(syscall.SIGSTOP) }, func() { r.workers[0].signal(syscall.SIGCONT) }},
	} {
		before := strings.Count(r.leader.err.String(), "the cluster serves")
		r.ask(want, tokens, func() {
			time.Sleep(30 * time.Millisecond)
			x.lose()
		})
		x.reappear()
		r.leader.err.until(t, "the worker back after it was "+x.name, r.leader.done, func(text string) bool {
			return strings.Count(text, "the cluster serves") >= before+2
		})
	}
	r.ask(want, tokens, func() {})
	if n := r.metric("ranks_lost"); n != 2 {
		t.Errorf("%g ranks were lost", n)
	}
	if n := r.metric("request_replays"); n < 1 || n > 2*requests {
		t.Errorf("%g requests went on elsewhere", n)
	}
	for _, w := range append(r.workers, r.leader) {
		w.signal(syscall.SIGTERM)
	}
	for _, w := range append(r.workers, r.leader) {
		if status := w.wait(); status != 0 {
			t.Errorf("a member ended with status %d:\n%s", status, w.err)
		}
	}
}

// TestClusterRefusals: flags that do not go together, and workers that are not wanted.
func TestClusterRefusals(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	answers(t, "", "certs", dir)
	refuses(t, 1, []string{"serve", "--worker-listen", "127.0.0.1:0"}, "--worker-certs", "krater certs")
	refuses(t, 1, []string{"serve", "--worker-listen", "127.0.0.1:0", "--worker-certs", dir}, "--ranks 0", "at least 2")
	refuses(t, 1, []string{"serve", "--worker-certs", dir}, "--worker-listen")
	refuses(t, 1, []string{"worker", "--worker-certs", dir}, "--join")
	refuses(t, 1, []string{"worker", "--join", "127.0.0.1:1", "--worker-certs", t.TempDir()}, "krater certs")
	r := newCluster(t, 1)
	other := filepath.Join(t.TempDir(), "certs")
	answers(t, "", "certs", other)
	stranger := launch(t, "worker", "--join", r.members, "--worker-certs", other, "--log-format", "json")
	stranger.err.wait(t, "authority", stranger.done)
	wrong := launch(t, "worker", "--join", r.members, "--worker-certs", r.certs, "--model", goldenDir, "--log-format", "json")
	if status := wrong.wait(); status != 1 || !strings.Contains(wrong.err.String(), "others than the leader's") {
		t.Errorf("a worker with other files: status %d\n%s", status, wrong.err)
	}
}

// TestLeaderWorkerSet: the environment of a LeaderWorkerSet of Kubernetes says how many processes there are, where the
// leader is, and in which order workers have layers. Secrets have other names of files.
func TestLeaderWorkerSet(t *testing.T) {
	certs, secrets := filepath.Join(t.TempDir(), "certs"), map[string]string{}
	answers(t, "", "certs", certs)
	for _, role := range []string{"leader", "worker"} {
		secrets[role] = t.TempDir()
		for from, to := range map[string]string{"ca.pem": "ca.crt", role + ".pem": "tls.crt", role + ".key": "tls.key"} {
			text, err := os.ReadFile(filepath.Join(certs, from))
			if err == nil {
				err = os.WriteFile(filepath.Join(secrets[role], to), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("LWS_GROUP_SIZE", "3")
	leader := launch(t, "serve", "--listen", "127.0.0.1:0", "--worker-listen", "127.0.0.1:0", "--worker-certs", secrets["leader"], "--batch-dir", "off", "--threads", "1", "--log-format", "json")
	var said struct{ Listen string }
	if err := json.Unmarshal([]byte(leader.err.wait(t, "waiting for workers", leader.done)), &said); err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(said.Listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("LWS_LEADER_ADDRESS", host)
	var workers []*program
	for _, index := range []string{"2", "1"} {
		t.Setenv("LWS_WORKER_INDEX", index)
		workers = append(workers, launch(t, "worker", "--join-port", port, "--worker-certs", secrets["worker"], "--worker-name", "pod-"+index, "--threads", "1", "--log-format", "json"))
	}
	if _, err := complete(t.Context(), leader.address(), 0, 8); err != nil {
		t.Fatal(err)
	}
	route := regexp.MustCompile(`group0\[(\d+)\.\.`)
	first := func(w *program) int {
		m := route.FindStringSubmatch(w.err.wait(t, "pipeline started", w.done))
		if m == nil {
			t.Fatalf("no layers in the log:\n%s", w.err)
		}
		n, _ := strconv.Atoi(m[1])
		return n
	}
	if second, third := first(workers[1]), first(workers[0]); second >= third || second == 0 {
		t.Errorf("worker 1 begins with layer %d, worker 2 with %d", second, third)
	}
}

// TestClusterChaos loses workers at random, again and again: every request ends with the right tokens, those that come when nothing
// is served for long after they were asked again. In short mode it takes seconds, in the nightly run ten minutes.
func TestClusterChaos(t *testing.T) {
	const tokens = 40
	requests, clients, most := 200, 4, 10*time.Minute
	if testing.Short() {
		requests, clients, most = 8, 2, 2*time.Second
	}
	want := alone(t, 20, tokens)
	r := newCluster(t, 2, "--peer-timeout", "500ms")
	ctx, cancel := context.WithTimeout(t.Context(), most+patience)
	defer cancel()
	next, all := make(chan int), make(chan struct{})
	var wg sync.WaitGroup
	var refused atomic.Int64
	for range clients {
		wg.Go(func() {
			for i := range next {
				got, err := complete(ctx, r.base, i%len(want), tokens)
				for errors.Is(err, errUnavailable) {
					refused.Add(1)
					time.Sleep(500 * time.Millisecond)
					got, err = complete(ctx, r.base, i%len(want), tokens)
				}
				if err != nil || got != want[i%len(want)] {
					t.Errorf("request %d: %v, %q, want %q", i, err, got, want[i%len(want)])
				}
			}
		})
	}
	go func() {
		defer close(all)
		pause := most / time.Duration(requests)
		for i := range requests {
			next <- i
			time.Sleep(pause)
		}
		close(next)
		wg.Wait()
	}()
	random := rand.New(rand.NewPCG(20, 1))
	for losses := 0; ; losses++ {
		select {
		case <-all:
			t.Logf("%d requests, %d losses, %d refused for a moment", requests, losses, refused.Load())
			if losses == 0 {
				t.Error("no worker was lost")
			}
			return
		case <-time.After(time.Duration(500+random.IntN(1500)) * time.Millisecond):
		}
		i := random.IntN(len(r.workers))
		if random.IntN(2) == 0 {
			r.kill(i)
			time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond)
			r.start(i)
			continue
		}
		r.workers[i].signal(syscall.SIGSTOP)
		time.Sleep(time.Duration(random.IntN(1200)) * time.Millisecond)
		r.workers[i].signal(syscall.SIGCONT)
	}
}
