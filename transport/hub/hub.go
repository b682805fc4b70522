// Package hub downloads models from a Hugging Face compatible hub into the cache folder that Hugging Face's tools share
// (stages/source/hubcache). A download that was interrupted at any moment goes on where it ended, and every file is
// checked against the hub's hash before it gets its name.
package hub

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"krater/scheduler/files"
	"krater/stages/source/hubcache"
)

// Default is the hub that is asked when neither a flag nor HF_ENDPOINT names another.
const Default = "https://huggingface.co"

// Client downloads from one hub. Its fields are set before use.
type Client struct {
	URL      string // of the hub, without a slash at the end
	Token    string // sent to the hub alone; "": none
	Agent    string // User-Agent
	Parallel int    // files at a time; 0: 8
	// Say tells of waits and retries, Progress how many bytes of all files are there. Both may be nil. They are called from
	// several goroutines, one at a time.
	Say      func(line string)
	Progress func(done, all int64)

	withheld bool       // there is a token, and the hub has no TLS
	tell     sync.Mutex // held while Say or Progress runs
	http     *http.Client
	sys      system
}

// system holds the calls of the operating system; tests replace them.
type system struct {
	sleep   func(ctx context.Context, d time.Duration) error
	free    func(dir string) (int64, error)
	symlink func(to, name string) error
	link    func(file, name string) error
	step    func(what string) error // before every change of a file
	stall   time.Duration           // after this long without a byte a connection is given up
}

// New returns a client of a hub; hub and token may be "".
func New(hub, token string) (*Client, error) {
	if hub == "" {
		hub = Default
	}
	u, err := url.Parse(strings.TrimRight(hub, "/"))
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return nil, fmt.Errorf("the hub must be an address such as %s", Default)
	}
	withheld := token != "" && u.Scheme == "http" && !loopback(u.Hostname()) // others could read it
	if withheld {
		token = ""
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("the hub's token has characters that no token has")
	}
	c := &Client{URL: u.String(), Token: token, withheld: withheld, sys: realSystem()}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout, transport.MaxIdleConnsPerHost = time.Minute, parallel
	transport.DisableCompression = true // a range is one of the file's bytes
	c.http = &http.Client{Transport: transport, CheckRedirect: c.redirect}
	return c, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// tokenMost bounds the file with the token.
const tokenMost = 4096

// UserToken returns the token in HF_TOKEN, or the one that the hub's own tool stored at a login, or "".
func UserToken() string {
	for _, name := range []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} {
		if token := strings.TrimSpace(os.Getenv(name)); token != "" {
			return token
		}
	}
	path := os.Getenv("HF_TOKEN_PATH")
	if path == "" {
		path = filepath.Join(hubcache.Home(), "token")
	}
	data, err := files.Read(path, tokenMost)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// redirectsMost bounds the redirects of a request.
const redirectsMost = 10

// redirect removes the token from requests to other hosts, and refuses to leave TLS.
func (c *Client) redirect(req *http.Request, via []*http.Request) error {
	if len(via) >= redirectsMost {
		return &finalError{fmt.Errorf("more than %d redirects", redirectsMost)}
	}
	if via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme != "https" {
		return &finalError{fmt.Errorf("the redirect to %s is not encrypted", req.URL.Host)}
	}
	req.Header.Del("Referer") // it may be a signed link
	if !c.ours(req.URL) {
		req.Header.Del("Authorization")
	}
	return nil
}

// ours reports whether an address is the hub's own.
func (c *Client) ours(u *url.URL) bool {
	hub, err := url.Parse(c.URL)
	return err == nil && u.Scheme == hub.Scheme && u.Host == hub.Host
}

// get requests a path of the hub and follows redirects. Any status but 200 and 206 is a *statusError.
func (c *Client) get(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+path, nil)
	if err != nil {
		return nil, &finalError{err}
	}
	for name := range header {
		req.Header.Set(name, header.Get(name))
	}
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", c.Agent)
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, plainly(err)
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent {
		return resp, nil
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection can be used again
	return nil, c.statusOf(resp)
}

// plainly removes the address from an error of net/http: it may be a signed link.
func plainly(err error) error {
	var at *url.Error
	if !errors.As(err, &at) {
		return err
	}
	host := ""
	if u, e := url.Parse(at.URL); e == nil {
		host = u.Host + ": "
	}
	var dns *net.DNSError
	var cert x509.UnknownAuthorityError
	var name x509.HostnameError
	err = fmt.Errorf("%s%w", host, at.Err)
	if errors.As(err, &dns) && dns.IsNotFound || errors.As(err, &cert) || errors.As(err, &name) {
		return &finalError{err}
	}
	return err
}

// finalError is not tried again.
type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }
