// Package certs holds the identities of the members of a cluster: a small certificate authority, and a certificate for each
// member.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// Leader and Worker are the names of members that have no others. The certificate of the leader has
// the name Leader, which workers ask for.
const (
	Leader = "leader"
	Worker = "worker"
)

const (
	authorityFile = "ca"
	certSuffix    = ".pem"
	keySuffix     = ".key"
)

// validName matches names of members: labels of DNS names.
var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Made is a file that Make wrote.
type Made struct {
	Path   string
	Secret bool // a private key
}

// Make writes the authority to dir, unless it is there, and a pair for each name that has none:
// NAME.pem and NAME.key beside ca.pem and ca.key. Pairs are valid for that long, the authority ten
// times as long. Keys are readable by the owner alone. It returns the files that it wrote.
func Make(dir string, names []string, valid time.Duration) ([]Made, error) {
	for _, name := range names {
		if !validName.MatchString(name) || name == authorityFile {
			return nil, fmt.Errorf("the name %q: want lower-case letters, digits and hyphens, and not %q", name, authorityFile)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	var made []Made
	authority, err := read(dir, authorityFile)
	if errors.Is(err, fs.ErrNotExist) {
		authority, err = issue(dir, authorityFile, nil, 10*valid)
		made = authority.files(dir)
	}
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(dir, name+certSuffix)); err == nil {
			continue
		}
		p, err := issue(dir, name, authority, valid)
		if err != nil {
			return made, err
		}
		made = append(made, p.files(dir)...)
	}
	return made, nil
}

// pair is a certificate and its private key.
type pair struct {
	name string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func (p *pair) files(dir string) []Made {
	if p == nil {
		return nil
	}
	return []Made{{filepath.Join(dir, p.name+certSuffix), false}, {filepath.Join(dir, p.name+keySuffix), true}}
}

// read returns the authority's pair in dir.
func read(dir, name string) (*pair, error) {
	der, err := block(filepath.Join(dir, name+certSuffix), "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, name+keySuffix)
	if der, err = block(path, "PRIVATE KEY"); err != nil {
		return nil, fmt.Errorf("without the key of the authority no pair can be made: %w", err)
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || !ec.PublicKey.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("%s is not the key of %s%s", path, name, certSuffix)
	}
	return &pair{name, cert, ec}, nil
}

// block reads the one PEM block of a file.
func block(path, kind string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	b, _ := pem.Decode(text)
	if b == nil || b.Type != kind {
		return nil, fmt.Errorf("%s: not a PEM file with a %s", path, kind)
	}
	return b.Bytes, nil
}

// issue makes a pair that the authority signs, or the authority itself (nil), and writes it.
func issue(dir, name string, authority *pair, valid time.Duration) (*pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name, Organization: []string{"Krater"}},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(valid), BasicConstraintsValid: true, // clocks of machines differ
	}
	parent, signer := c, key
	if authority == nil {
		c.IsCA, c.MaxPathLenZero = true, true
		c.KeyUsage = x509.KeyUsageCertSign
	} else {
		parent, signer = authority.cert, authority.key
		c.DNSNames = []string{name}
		c.KeyUsage = x509.KeyUsageDigitalSignature
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		if c.NotAfter.After(parent.NotAfter) {
			c.NotAfter = parent.NotAfter
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, err
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	// The key first: a certificate without one would be taken for a pair.
	if err := write(filepath.Join(dir, name+keySuffix), "PRIVATE KEY", secret, 0o600); err != nil {
		return nil, err
	}
	if err := write(filepath.Join(dir, name+certSuffix), "CERTIFICATE", der, 0o644); err != nil {
		return nil, err
	}
	return &pair{name, c, key}, nil
}

// write makes a PEM file; the rights of one that is there are set again.
func write(path, kind string, der []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(mode), pem.Encode(f, &pem.Block{Type: kind, Bytes: der}), f.Sync(), f.Close())
}
