package hub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// statusError is an answer with an error status.
type statusError struct {
	code  int
	host  string
	hub   bool // the hub's own, not of a host that it sent us to
	fault string
	after time.Duration // Retry-After
	token bool          // one was sent
}

// faultMost bounds the text that an error quotes from an answer.
const faultMost = 200

func (c *Client) statusOf(resp *http.Response) error {
	e := &statusError{code: resp.StatusCode, host: resp.Request.URL.Host, hub: c.ours(resp.Request.URL), token: c.Token != ""}
	e.fault = resp.Header.Get("X-Error-Code")
	if e.fault == "" {
		e.fault = resp.Header.Get("X-Error-Message")
	}
	e.fault = e.fault[:min(len(e.fault), faultMost)]
	e.after = retryAfter(resp.Header)
	return e
}

// retryAfter returns the wait that an answer asks for, by the clock of the server; 0 if it asks for none.
func retryAfter(h http.Header) time.Duration {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if n, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	at, err := http.ParseTime(value)
	now, err2 := http.ParseTime(h.Get("Date"))
	if err != nil || err2 != nil {
		return 0
	}
	return max(0, at.Sub(now))
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("%s answers %d %s", e.host, e.code, http.StatusText(e.code))
	if e.fault != "" {
		text += fmt.Sprintf(" (%q)", e.fault)
	}
	return text
}

// temporary reports whether the same request may have another answer soon. A host that the hub sent us to refuses links
// that have expired: the hub gives a new one.
func (e *statusError) temporary() bool {
	switch e.code {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusGone, http.StatusBadRequest:
		return !e.hub
	}
	return e.code >= 500
}

// explain adds the remedy to an error about a model or one of its files.
func (c *Client) explain(err error, repo, rev string) error {
	var e *statusError
	if !errors.As(err, &e) || !e.hub {
		return err
	}
	page := c.URL + "/" + repo
	switch {
	case c.withheld && (e.code == http.StatusUnauthorized || e.code == http.StatusForbidden):
		return fmt.Errorf("%s needs a token, which is sent over TLS only, and %s has none (%w)", repo, c.URL, err)
	case strings.EqualFold(e.fault, "GatedRepo") && e.token:
		return fmt.Errorf("%s is gated: accept its terms on %s with the account that the token is of (%w)", repo, page, err)
	case strings.EqualFold(e.fault, "GatedRepo"):
		return fmt.Errorf("%s is gated: accept its terms on %s, make a token in your settings there, and set HF_TOKEN (%w)", repo, page, err)
	case strings.EqualFold(e.fault, "EntryNotFound"):
		return err
	case strings.EqualFold(e.fault, "RevisionNotFound"):
		return fmt.Errorf("%s has no revision %s (%w)", repo, rev, err)
	case e.code == http.StatusUnauthorized && !e.token:
		return fmt.Errorf("%s does not exist, or it is private or gated. Look at %s; for a model that needs a login set HF_TOKEN (%w)", repo, page, err)
	case e.code == http.StatusUnauthorized:
		return fmt.Errorf("the hub does not accept the token for %s, or there is no such model: look at HF_TOKEN and %s (%w)", repo, page, err)
	case e.code == http.StatusForbidden:
		return fmt.Errorf("the token may not read %s: it is gated, or the token's rights do not cover it; see %s (%w)", repo, page, err)
	case e.code == http.StatusNotFound:
		return fmt.Errorf("%s has no model %s, or none that you may see (%w)", c.URL, repo, err)
	}
	return err
}

const (
	attempts = 7                // in a row without progress
	longest  = 30 * time.Second // between two attempts, unless the hub asks for more
	patience = 10 * time.Minute // longer waits end the download
)

// retry calls try until it succeeds, fails for good, or fails too often without progress.
func (c *Client) retry(ctx context.Context, what string, try func() (progress bool, err error)) error {
	for failures := 0; ; {
		progress, err := try()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var final *finalError
		var status *statusError
		answered := errors.As(err, &status)
		if errors.As(err, &final) || answered && !status.temporary() {
			return fmt.Errorf("%s: %w", what, err)
		}
		if progress {
			failures = 0
		}
		if failures++; failures >= attempts {
			return fmt.Errorf("%s: %w; given up after %d attempts. The same command goes on from here", what, err, attempts)
		}
		wait := min(longest, time.Second<<(failures-1))
		wait += time.Duration(rand.Int64N(int64(wait) / 4)) // so that many clients do not come together
		if answered && status.after > 0 {
			wait = status.after
		}
		if wait > patience {
			return fmt.Errorf("%s: %w; it asks for a wait of %s. Run the same command then", what, err, wait)
		}
		c.say(fmt.Sprintf("%s: %v; again in %s", what, err, wait.Round(100*time.Millisecond)))
		if err := c.sys.sleep(ctx, wait); err != nil {
			return err
		}
	}
}

func (c *Client) say(line string) {
	if c.Say != nil {
		c.tell.Lock()
		defer c.tell.Unlock()
		c.Say(line)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
