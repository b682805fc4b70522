package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"krater/stages/source/hubcache"
)

// Result describes a finished Pull.
type Result struct {
	Path   string // of the snapshot's folder, or of the first .gguf file where a quantisation was asked for
	Commit string
	Files  []File
}

// pull is a download of some files of a revision.
type pull struct {
	c           *Client
	ref         hubcache.Ref
	commit      string
	repo, locks string // folders
	all, done   atomic.Int64
}

// parallel is the number of files at a time, unless the client says another.
const parallel = 8

// Pull downloads a model into a cache: the files that match include, or by default those that Krater needs. Files that are there
// are not downloaded again. After an error, another call continues the download.
func (c *Client) Pull(ctx context.Context, cache string, ref hubcache.Ref, include []string) (*Result, error) {
	if cache == "" {
		return nil, errors.New("there is no home folder: name the cache with HF_HOME or HF_HUB_CACHE")
	}
	rev, err := c.revision(ctx, ref)
	if err != nil {
		return nil, err
	}
	chosen, err := choose(rev.files, ref, include)
	if err != nil {
		return nil, err
	}
	p := &pull{
		c: c, ref: ref, commit: rev.commit,
		repo: filepath.Join(cache, hubcache.Folder(ref.Repo)), locks: filepath.Join(cache, ".locks", hubcache.Folder(ref.Repo)),
	}
	for _, dir := range []string{filepath.Join(p.repo, "blobs"), p.locks} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := p.checkSpace(chosen); err != nil {
		return nil, err
	}
	if err := p.fetchAll(ctx, chosen); err != nil {
		return nil, err
	}
	if err := p.show(chosen); err != nil {
		return nil, err
	}
	r := &Result{Path: p.snapshot(), Commit: p.commit, Files: chosen}
	if ref.Quant != "" {
		if names, err := hubcache.Select(pathsOf(chosen), ref.Quant); err == nil {
			r.Path = filepath.Join(r.Path, filepath.FromSlash(names[0]))
		}
	}
	return r, nil
}

func pathsOf(list []File) (paths []string) {
	for _, f := range list {
		paths = append(paths, f.Path)
	}
	return paths
}

func (p *pull) snapshot() string { return filepath.Join(p.repo, "snapshots", p.commit) }

// add counts received bytes, or dropped ones if n is negative.
func (p *pull) add(n int64) {
	if p.c.Progress == nil {
		return
	}
	p.c.tell.Lock() // so that the figures come in order
	defer p.c.tell.Unlock()
	p.c.Progress(p.done.Add(n), p.all.Load())
}

// contents returns one file for every different content.
func contents(list []File) []File {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b File) int { return cmp.Compare(a.id(), b.id()) })
	list = slices.CompactFunc(list, func(a, b File) bool { return a.id() == b.id() })
	// The largest first, so that none of them runs alone at the end.
	slices.SortStableFunc(list, func(a, b File) int { return cmp.Compare(b.Size, a.Size) })
	return list
}

// checkSpace compares the missing bytes with the free space of the disk, before anything is downloaded.
func (p *pull) checkSpace(list []File) error {
	var all, missing int64
	for _, f := range contents(list) {
		all += f.Size
		path := filepath.Join(p.repo, "blobs", f.id())
		if info, err := os.Stat(path); err == nil && info.Size() == f.Size || p.shown(f) {
			continue
		}
		missing += f.Size
		if info, err := os.Stat(path + ".incomplete"); err == nil && info.Size() <= f.Size {
			missing -= info.Size()
		}
	}
	p.all.Store(all)
	free, err := p.c.sys.free(p.repo)
	if err != nil {
		return fmt.Errorf("%s: %w", p.repo, err)
	}
	if free < missing {
		return fmt.Errorf("%s: %d bytes (%.1f GB) are missing, and %s has room for %d (%.1f GB). HF_HOME names another folder",
			p.ref, missing, float64(missing)/1e9, p.repo, free, float64(free)/1e9)
	}
	return nil
}

func freeSpace(dir string) (int64, error) {
	var s unix.Statfs_t
	err := unix.Statfs(dir, &s)
	return int64(s.Bavail) * int64(s.Bsize), err
}

// shown reports whether the snapshot has a file under its own name, without a blob.
func (p *pull) shown(f File) bool {
	info, err := os.Lstat(filepath.Join(p.snapshot(), filepath.FromSlash(f.Path)))
	return err == nil && info.Mode().IsRegular() && info.Size() == f.Size
}

// fetchAll downloads the contents, several at a time. The first error ends all downloads.
func (p *pull) fetchAll(ctx context.Context, list []File) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan File)
	var wait sync.WaitGroup
	for range cmp.Or(p.c.Parallel, parallel) {
		wait.Go(func() {
			for f := range work {
				if p.shown(f) {
					p.add(f.Size)
				} else if err := p.fetch(ctx, f); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, f := range contents(list) {
		select {
		case work <- f:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(work)
	wait.Wait()
	return context.Cause(ctx)
}

// show links the files into the snapshot, config.json last, and then writes the ref of the revision.
func (p *pull) show(list []File) error {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b File) int { return cmp.Compare(last(a), last(b)) })
	folders, names := map[string]bool{}, map[string]int{}
	for _, f := range list {
		names[f.id()]++
	}
	for _, f := range list {
		name := filepath.Join(p.snapshot(), filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		folders[filepath.Dir(name)] = true
		if err := p.name(f, name, names[f.id()] == 1); err != nil {
			return err
		}
	}
	for dir := range folders {
		if err := syncFolder(dir); err != nil {
			return err
		}
	}
	if p.ref.Revision() == p.commit {
		return nil
	}
	ref := filepath.Join(p.repo, "refs", filepath.FromSlash(p.ref.Revision()))
	if err := os.MkdirAll(filepath.Dir(ref), 0o755); err != nil {
		return err
	}
	return p.c.replace(ref, func(temp string) error { return writeSynced(temp, p.commit) })
}

func last(f File) int {
	if f.Path == "config.json" {
		return 1
	}
	return 0
}

// name links a file of the snapshot to its content. Where the file system has no links, it moves the content there, or copies
// it if several files share it.
func (p *pull) name(f File, name string, alone bool) error {
	path := filepath.Join(p.repo, "blobs", f.id())
	to, err := filepath.Rel(filepath.Dir(name), path)
	if err != nil {
		return err
	}
	if was, err := os.Readlink(name); err == nil && was == to || p.shown(f) {
		return nil
	}
	err = p.c.replace(name, func(temp string) error {
		if p.c.sys.symlink(to, temp) == nil || p.c.sys.link(path, temp) == nil {
			return nil
		}
		return errNoLinks
	})
	switch {
	case !errors.Is(err, errNoLinks):
		return err
	case alone:
		return os.Rename(path, name)
	}
	return p.c.replace(name, func(temp string) error { return copyFile(path, temp) })
}

var errNoLinks = errors.New("the file system has no links")

// replace creates a file under a temporary name and renames it.
func (c *Client) replace(name string, make func(temp string) error) error {
	temp := fmt.Sprintf("%s.%016x.tmp", name, rand.Uint64())
	err := c.sys.step("name")
	if err == nil {
		err = make(temp)
	}
	if err == nil {
		err = c.sys.step("rename")
	}
	if err == nil {
		err = os.Rename(temp, name)
	}
	if err != nil {
		_ = os.Remove(temp) // may not be there
	}
	return err
}

// lockEvery is how often a lock is tried: flock cannot be interrupted.
const lockEvery = 200 * time.Millisecond

// lock takes the lock under which the hub's own tools download a content as well.
func (c *Client) lock(ctx context.Context, path, what string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, err
	}
	for told := false; ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if errors.Is(err, syscall.EWOULDBLOCK) {
			if !told {
				c.say(what + ": another program downloads it; waiting")
			}
			told = true
			err = c.sys.sleep(ctx, lockEvery)
		}
		if err != nil && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, err
		}
	}
}
