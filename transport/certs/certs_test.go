package certs

import (
	"crypto/tls"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMake: the authority and the pairs are made once, keys are the owner's alone.
func TestMake(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	made, err := Make(dir, []string{Leader, Worker}, time.Hour)
	if err != nil || len(made) != 6 {
		t.Fatalf("%v, %v", made, err)
	}
	before := map[string]string{}
	for _, m := range made {
		info, err := os.Stat(m.Path)
		if err != nil {
			t.Fatal(err)
		}
		want := fs.FileMode(0o644)
		if m.Secret {
			want = 0o600
		}
		if info.Mode() != want {
			t.Errorf("%s: %v, want %v", m.Path, info.Mode(), want)
		}
		text, err := os.ReadFile(m.Path)
		if err != nil {
			t.Fatal(err)
		}
		before[m.Path] = string(text)
	}
	made, err = Make(dir, []string{Leader, "w2"}, time.Hour)
	if err != nil || len(made) != 2 || !strings.HasSuffix(made[0].Path, "w2.pem") {
		t.Fatalf("again: %v, %v", made, err)
	}
	for path, text := range before {
		if now, err := os.ReadFile(path); err != nil || string(now) != text {
			t.Errorf("%s has changed: %v", path, err)
		}
	}
	if err := handshake(t, dir, "w2"); err != nil {
		t.Errorf("w2: %v", err)
	}
	for _, name := range []string{"", "ca", "a b", "../x", "A", "-x"} {
		if _, err := Make(dir, []string{name}, time.Hour); err == nil {
			t.Errorf("the name %q is taken", name)
		}
	}
}

// handshake connects a member to the leader.
func handshake(t *testing.T, dir, name string) error {
	t.Helper()
	leader, err := Load(dir, Leader)
	if err != nil {
		t.Fatal(err)
	}
	id, err := Load(dir, name)
	if err != nil {
		return err
	}
	x, y := net.Pipe()
	defer x.Close()
	defer y.Close()
	got := make(chan error)
	go func() { got <- tls.Server(y, leader.Server("p")).Handshake() }()
	err = tls.Client(x, id.Client(Leader, "p")).Handshake()
	if e := <-got; err == nil {
		err = e
	}
	return err
}

// TestLoad: what peers would refuse is refused at the start, with its cause.
func TestLoad(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, other} {
		if _, err := Make(d, []string{Leader, Worker}, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if id, err := Load(dir, "host-a", Worker); err != nil || id.Name != Worker {
		t.Errorf("%v, %v: want the name that has a pair", id, err)
	}
	secret := t.TempDir()
	for from, to := range map[string]string{"ca.pem": "ca.crt", "leader.pem": "tls.crt", "leader.key": "tls.key"} {
		copyFile(t, filepath.Join(dir, from), filepath.Join(secret, to))
	}
	if id, err := Load(secret, Leader); err != nil || id.Name != Leader {
		t.Errorf("a secret of Kubernetes: %v, %v", id, err)
	}
	if _, err := Load(dir, "host-a"); err == nil || !strings.Contains(err.Error(), "krater certs") {
		t.Errorf("no pair: %v", err)
	}
	copyFile(t, filepath.Join(other, "worker.key"), filepath.Join(dir, "worker.key"))
	if _, err := Load(dir, Worker); err == nil || !strings.Contains(err.Error(), "private key") {
		t.Errorf("the key of another: %v", err)
	}
	copyFile(t, filepath.Join(other, "leader.key"), filepath.Join(dir, "leader.key"))
	copyFile(t, filepath.Join(other, "leader.pem"), filepath.Join(dir, "leader.pem"))
	if _, err := Load(dir, Leader); err == nil || !strings.Contains(err.Error(), "peers would refuse it") {
		t.Errorf("a pair of another authority: %v", err)
	}
	if _, err := Make(other, []string{"old"}, -time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(other, "old"); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("an old pair: %v", err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
