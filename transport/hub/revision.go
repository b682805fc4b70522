package hub

import (
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"regexp"
	"strings"

	"krater/stages/source/hubcache"
)

// File is a file of a revision.
type File struct {
	Path   string // with slashes, within the model's folder
	Size   int64
	SHA256 string // of the content, "" for a small file
	SHA1   string // of a small file, as git counts it: of "blob SIZE\0" and the content
}

// id returns the name of the content in the cache, as the hub's own tools choose it.
func (f *File) id() string {
	if f.SHA256 != "" {
		return f.SHA256
	}
	return f.SHA1
}

// revision is a commit of a model and its files.
type revision struct {
	commit string
	files  []File
}

// Limits of a model.
const (
	listMost  = 64 << 20 // bytes of the list of files
	filesMost = 100_000
	pathMost  = 1024
	nameMost  = 255     // of a folder or file
	sizeMost  = 1 << 44 // bytes of a file
	allMost   = 1 << 46 // bytes of a model
)

// revision asks the hub for the files of a model.
func (c *Client) revision(ctx context.Context, ref hubcache.Ref) (*revision, error) {
	path := "/api/models/" + ref.Repo + "/revision/" + url.PathEscape(ref.Revision()) + "?blobs=true"
	var r *revision
	err := c.retry(ctx, "list the files of "+ref.Repo, func() (bool, error) {
		resp, err := c.get(ctx, path, nil)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(io.LimitReader(resp.Body, listMost+1))
		if err != nil {
			return false, err
		}
		if r, err = parseRevision(data); err != nil {
			return false, &finalError{err}
		}
		return true, nil
	})
	if err != nil {
		return nil, c.explain(err, ref.Repo, ref.Revision())
	}
	return r, nil
}

var (
	sha1Syntax   = regexp.MustCompile(`^[0-9a-f]{40}$`)
	sha256Syntax = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// parseRevision reads the hub's answer. Everything in it that becomes a path or a size is checked.
func parseRevision(data []byte) (*revision, error) {
	if len(data) > listMost {
		return nil, fmt.Errorf("the hub's list of files has more than %d bytes", listMost)
	}
	var answer struct {
		SHA      string `json:"sha"`
		Siblings []struct {
			Name   string `json:"rfilename"`
			Size   *int64 `json:"size"`
			BlobID string `json:"blobId"`
			LFS    *struct {
				SHA256 string `json:"sha256"`
				Size   *int64 `json:"size"`
			} `json:"lfs"`
		} `json:"siblings"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("the hub's list of files cannot be read: %w", err)
	}
	if !sha1Syntax.MatchString(answer.SHA) {
		return nil, fmt.Errorf("the hub's list of files names no commit: %.60q", answer.SHA)
	}
	if len(answer.Siblings) > filesMost {
		return nil, fmt.Errorf("the model has %d files, more than %d", len(answer.Siblings), filesMost)
	}
	r := &revision{commit: answer.SHA}
	seen, all := map[string]bool{}, int64(0)
	for _, s := range answer.Siblings {
		f := File{Path: s.Name, SHA1: s.BlobID}
		size := s.Size
		if s.LFS != nil {
			f.SHA1, f.SHA256 = "", s.LFS.SHA256
			if s.LFS.Size != nil {
				size = s.LFS.Size
			}
		}
		if err := checkPath(f.Path); err != nil {
			return nil, err
		}
		switch {
		case seen[f.Path]:
			return nil, fmt.Errorf("the hub names %q twice", f.Path)
		case size == nil:
			return nil, fmt.Errorf("the hub does not say how large %q is", f.Path)
		case *size < 0 || *size > sizeMost || all+*size > allMost:
			return nil, fmt.Errorf("the hub says that %q has %d bytes", f.Path, *size)
		case s.LFS != nil && !sha256Syntax.MatchString(f.SHA256), s.LFS == nil && !sha1Syntax.MatchString(f.SHA1):
			return nil, fmt.Errorf("the hub gives no hash of %q", f.Path)
		}
		seen[f.Path] = true
		f.Size = *size
		all += f.Size
		r.files = append(r.files, f)
	}
	return r, nil
}

// checkPath refuses names that would lead out of the model's folder, or that no folder can hold.
func checkPath(path string) error {
	bad := !fs.ValidPath(path) || path == "." || len(path) > pathMost || strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' })
	for part := range strings.SplitSeq(path, "/") {
		bad = bad || len(part) > nameMost
	}
	if bad {
		return fmt.Errorf("the hub names a file %.100q: %w", path, errPath)
	}
	return nil
}

var errPath = errors.New("it would lie outside of the model's folder, or no folder can hold it")
