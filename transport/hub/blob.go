package hub

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// blob is the download of one file's content.
type blob struct {
	c      *Client
	pull   *pull
	file   File
	path   string // of the finished content
	out    *os.File
	sum    hash.Hash
	at     int64  // bytes in out and in sum
	etag   string // strong ETag of the last answer, or ""
	reused bool   // out may have bytes of several answers
}

// fetch downloads the content into the cache unless it is there. A lock keeps other programs from doing the same.
func (p *pull) fetch(ctx context.Context, f File) error {
	b := &blob{c: p.c, pull: p, file: f, path: filepath.Join(p.repo, "blobs", f.id())}
	unlock, err := p.c.lock(ctx, filepath.Join(p.locks, f.id()+".lock"), f.Path)
	if err != nil {
		return err
	}
	defer unlock()
	if info, err := os.Stat(b.path); err == nil && info.Size() == f.Size {
		p.add(f.Size)
		return nil
	}
	if err := b.open(ctx); err != nil {
		return err
	}
	defer b.out.Close()
	for {
		err := p.c.retry(ctx, f.Path, func() (bool, error) {
			before := b.at
			err := b.receive(ctx)
			return b.at-before >= progressLeast, err
		})
		if err != nil {
			return p.c.explain(err, p.ref.Repo, p.commit)
		}
		if hex.EncodeToString(b.sum.Sum(nil)) == f.id() {
			return b.finish()
		}
		if err := b.restart(); err != nil {
			return err
		}
		if !b.reused {
			_ = os.Remove(b.incomplete()) // it is empty
			return fmt.Errorf("%s: its content has not the hash that the hub names, %s: discarded. The hub's copy or the way to it is damaged", f.Path, f.id())
		}
		b.reused = false
		p.c.say(f.Path + ": what was received in parts is damaged: once more from the beginning")
	}
}

// progressLeast is the number of bytes from which an attempt counts as progress.
const progressLeast = 1 << 20

func (b *blob) incomplete() string { return b.path + ".incomplete" }

// open opens the file that an earlier download left, or a new one, and hashes its bytes.
func (b *blob) open(ctx context.Context) (err error) {
	if err = b.c.sys.step("open"); err != nil {
		return err
	}
	if b.out, err = os.OpenFile(b.incomplete(), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o644); err != nil {
		return err
	}
	info, err := b.out.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", b.incomplete())
	}
	if err == nil && info.Size() > b.file.Size {
		err = b.out.Truncate(0)
	}
	if err == nil {
		b.sum = b.file.hash()
		err = b.rehash(ctx)
	}
	if err != nil {
		b.out.Close()
		return err
	}
	b.reused = b.at > 0
	return nil
}

// rehash hashes the bytes of the file, which may be many.
func (b *blob) rehash(ctx context.Context) error {
	buf := make([]byte, bufferBytes)
	for ctx.Err() == nil {
		n, err := b.out.Read(buf)
		b.sum.Write(buf[:n])
		b.at += int64(n)
		b.pull.add(int64(n))
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// hash returns the hash function that names the content.
func (f *File) hash() hash.Hash {
	if f.SHA256 != "" {
		return sha256.New()
	}
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", f.Size)
	return h
}

// restart drops all received bytes.
func (b *blob) restart() error {
	b.pull.add(-b.at)
	b.at, b.etag, b.sum = 0, "", b.file.hash()
	if err := b.c.sys.step("truncate"); err != nil {
		return &finalError{err}
	}
	if err := b.out.Truncate(0); err != nil {
		return &finalError{err}
	}
	_, err := b.out.Seek(0, io.SeekStart)
	return err
}

var (
	errStalled = errors.New("no byte has come for a long time")
	errSize    = errors.New("the server's file has another size than the hub's list says")
)

// receive requests the rest of the file and writes it. The hub gives a new link for every request.
func (b *blob) receive(ctx context.Context) error {
	if b.at == b.file.Size {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(b.c.sys.stall, func() { cancel(errStalled) })
	defer stall.Stop()
	resp, err := b.c.get(ctx, b.url(), b.rangeHeader())
	if err == nil {
		defer resp.Body.Close()
		if err = b.begin(resp); err == nil {
			err = b.copy(resp.Body, func() { stall.Reset(b.c.sys.stall) })
		}
	}
	var status *statusError
	if errors.As(err, &status) && status.code == http.StatusRequestedRangeNotSatisfiable && b.at > 0 {
		if restart := b.restart(); restart != nil {
			return restart
		}
		return errors.New(status.Error()) // one that may be tried again
	}
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}

// url returns the path of the file on the hub.
func (b *blob) url() string {
	parts := strings.Split(b.file.Path, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return "/" + b.pull.ref.Repo + "/resolve/" + b.pull.commit + "/" + strings.Join(parts, "/")
}

func (b *blob) rangeHeader() http.Header {
	h := http.Header{}
	if b.at > 0 {
		h.Set("Range", fmt.Sprintf("bytes=%d-", b.at))
		if b.etag != "" {
			h.Set("If-Range", b.etag)
		}
	}
	return h
}

// begin checks the header of an answer. If the server sends the whole file, the download starts again.
func (b *blob) begin(resp *http.Response) error {
	tag := resp.Header.Get("ETag")
	if resp.StatusCode == http.StatusPartialContent {
		var from, to, size int64
		said := resp.Header.Get("Content-Range")
		if _, err := fmt.Sscanf(said, "bytes %d-%d/%d", &from, &to, &size); err != nil || from != b.at || to != size-1 {
			return &finalError{fmt.Errorf("the server was asked for the bytes from %d on and sends %.60q", b.at, said)}
		}
		if size != b.file.Size {
			return &finalError{fmt.Errorf("%w: %d bytes, not %d", errSize, size, b.file.Size)}
		}
		b.reused = true
		if b.etag != "" && tag != b.etag { // another file by now
			return errors.Join(errors.New("the server's file has changed"), b.restart())
		}
	} else if b.at > 0 {
		if err := b.restart(); err != nil {
			return err
		}
	}
	if n := resp.ContentLength; n >= 0 && n != b.file.Size-b.at {
		return &finalError{fmt.Errorf("%w: %d bytes, not %d", errSize, b.at+n, b.file.Size)}
	}
	if b.etag = tag; !strings.HasPrefix(tag, `"`) { // a weak one says nothing about bytes
		b.etag = ""
	}
	return nil
}

// bufferBytes is the size of one read and one write.
var bufferBytes = 256 << 10

// copy writes the body of an answer to the file.
func (b *blob) copy(in io.Reader, received func()) error {
	buf := make([]byte, bufferBytes)
	for {
		n, err := in.Read(buf)
		if int64(n) > b.file.Size-b.at {
			return &finalError{fmt.Errorf("%w: more than %d bytes", errSize, b.file.Size)}
		}
		if n > 0 {
			received()
			if err := b.write(buf[:n]); err != nil {
				return &finalError{err}
			}
		}
		switch {
		case err == nil:
		case b.at == b.file.Size && errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, io.EOF):
			return io.ErrUnexpectedEOF
		default:
			return fmt.Errorf("the connection ended: %w", err)
		}
	}
}

func (b *blob) write(data []byte) error {
	err := b.c.sys.step("write")
	if err == nil {
		_, err = b.out.Write(data)
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w; %s has all bytes up to here, and the same command goes on there", err, b.incomplete())
	}
	if err != nil {
		return err
	}
	b.sum.Write(data)
	b.at += int64(len(data))
	b.pull.add(int64(len(data)))
	return nil
}

// finish gives the complete and checked content its name.
func (b *blob) finish() error {
	err := b.c.sys.step("sync")
	if err == nil {
		err = b.out.Sync()
	}
	if err == nil {
		err = b.c.sys.step("rename")
	}
	if err == nil {
		err = os.Rename(b.incomplete(), b.path)
	}
	if err == nil {
		err = syncFolder(filepath.Dir(b.path))
	}
	return err
}
