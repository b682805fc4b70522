package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Identity is who a member is, and whom it trusts.
type Identity struct {
	Name string // the first name in the certificate
	pair tls.Certificate
	pool *x509.CertPool
}

// Load reads a member's identity from dir: ca.pem with the pair of the first name that has one, or
// ca.crt, tls.crt and tls.key as Kubernetes secrets have them.
func Load(dir string, names ...string) (*Identity, error) {
	for _, name := range names {
		id, err := load(filepath.Join(dir, authorityFile+certSuffix), filepath.Join(dir, name+certSuffix), filepath.Join(dir, name+keySuffix))
		if !errors.Is(err, fs.ErrNotExist) {
			return id, err
		}
	}
	id, err := load(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has no certificates for %q: `krater certs %s` makes them (%w)", dir, names, dir, err)
	}
	return id, err
}

func load(authority, cert, key string) (*Identity, error) {
	text, err := os.ReadFile(authority)
	if err != nil {
		return nil, err
	}
	id := &Identity{pool: x509.NewCertPool()}
	if !id.pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: not a PEM file with a CERTIFICATE", authority)
	}
	if id.pair, err = tls.LoadX509KeyPair(cert, key); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %w", cert, err)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if _, err := id.pair.Leaf.Verify(x509.VerifyOptions{Roots: id.pool, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			return nil, fmt.Errorf("%s: peers would refuse it: %w", cert, err)
		}
	}
	if len(id.pair.Leaf.DNSNames) == 0 {
		return nil, fmt.Errorf("%s: the certificate has no DNS name", cert)
	}
	id.Name = id.pair.Leaf.DNSNames[0]
	return id, nil
}

// Server returns the configuration of a listener for members. It speaks the given protocols (ALPN).
func (id *Identity) Server(protocols ...string) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{id.pair}, ClientCAs: id.pool, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS13, NextProtos: protocols,
	}
}

// Client returns the configuration of a connection to the member of that name.
func (id *Identity) Client(peer, protocol string) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{id.pair}, RootCAs: id.pool, ServerName: peer,
		MinVersion: tls.VersionTLS13, NextProtos: []string{protocol},
	}
}
