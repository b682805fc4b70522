package batches

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"krater/actors/engine"
	"krater/scheduler/batchqueue"
	"krater/transport/api"
)

const (
	// envelopeBytes is the size of a form without its file.
	envelopeBytes = 64 << 10
	// nameMax bounds a file's name, in bytes.
	nameMax = 255
	// downloadChunk is the size of one write, which has its own deadline.
	downloadChunk = 128 << 10
)

// fail words what the store refuses for the client.
func (d *Door) fail(w http.ResponseWriter, err error) {
	refuse := func(status int, kind, code string) {
		(&api.Error{Status: status, Type: kind, Code: code, Message: err.Error()}).Write(w)
	}
	own, isOwn := errors.AsType[*api.Error](err)
	_, ofEngine := errors.AsType[*engine.Error](err)
	switch {
	case isOwn:
		own.Write(w)
	case ofEngine:
		api.FromEngine(err).Write(w)
	case errors.Is(err, batchqueue.ErrNotFound):
		refuse(http.StatusNotFound, api.TypeNotFound, "not_found")
	case errors.Is(err, batchqueue.ErrTooLarge):
		refuse(http.StatusRequestEntityTooLarge, api.TypeInvalidRequest, api.CodeTooLarge)
	case errors.Is(err, batchqueue.ErrFull):
		refuse(http.StatusRequestEntityTooLarge, api.TypeInvalidRequest, "storage_full")
	case errors.Is(err, batchqueue.ErrLost):
		refuse(http.StatusGone, api.TypeInvalidRequest, "content_lost")
	case errors.Is(err, batchqueue.ErrInUse):
		refuse(http.StatusConflict, api.TypeInvalidRequest, "file_in_use")
	case errors.Is(err, batchqueue.ErrState):
		refuse(http.StatusConflict, api.TypeInvalidRequest, "invalid_status")
	case errors.Is(err, batchqueue.ErrPurpose):
		refuse(http.StatusBadRequest, api.TypeInvalidRequest, api.CodeInvalidValue)
	default:
		d.opt.Log.Error().Err(err).Msg("batch store")
		api.Internal().Write(w)
	}
}

// upload is POST /v1/files. The file is written to disk as it arrives. It counts once the whole
// form is read and valid, whatever the order of its fields.
func (d *Door) upload(w http.ResponseWriter, r *http.Request) {
	release, err := d.mayUpload(r)
	if err != nil {
		w.Header().Set("Connection", "close")
		d.fail(w, err)
		return
	}
	defer release()
	body := &patientBody{ReadCloser: http.MaxBytesReader(w, r.Body, d.store.Limits().MaxFile+envelopeBytes), control: http.NewResponseController(w), timeout: d.opt.BodyTimeout}
	r.Body = body
	parts, err := r.MultipartReader()
	if err != nil {
		d.fail(w, &api.Error{
			Status: http.StatusUnsupportedMediaType, Type: api.TypeInvalidRequest, Code: api.CodeUnsupportedType,
			Message: "the Content-Type must be multipart/form-data",
		})
		return
	}
	form := uploadForm{door: d, owner: d.opt.Owner(r)}
	defer form.abort()
	err = form.read(parts)
	var file batchqueue.File
	if err == nil {
		body.done()
		file, err = form.upload.Commit(form.name, batchqueue.PurposeInput)
	}
	if err != nil {
		w.Header().Set("Connection", "close") // the rest may not have been read
		d.fail(w, d.bodyError(err, body.failed))
		return
	}
	api.WriteJSON(w, http.StatusOK, wireFile(&file))
}

// mayUpload takes a place among the uploads until release is called.
func (d *Door) mayUpload(r *http.Request) (release func(), err error) {
	if err := d.opt.Ready(); err != nil {
		return nil, err
	}
	// A page of another origin can send a form without asking first.
	if !d.opt.AllowOrigin(r) {
		return nil, &api.Error{
			Status: http.StatusForbidden, Type: api.TypeInvalidRequest, Code: "origin_not_allowed",
			Message: "pages of this origin may not upload; allow it with --origins",
		}
	}
	if limit := d.store.Limits().MaxFile; r.ContentLength > limit+envelopeBytes {
		return nil, fmt.Errorf("%w: it may have %d bytes", batchqueue.ErrTooLarge, limit)
	}
	if release = d.uploads.Take(d.opt.Peer(r)); release == nil {
		return nil, api.Overloaded(fmt.Sprintf("too many files are being uploaded, or too many of the %d by this key or address; try again later", maxUploads))
	}
	return release, nil
}

// bodyError words what went wrong while a body was read; failed reports whether the connection did.
func (d *Door) bodyError(err error, failed bool) error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return fmt.Errorf("%w: it may have %d bytes", batchqueue.ErrTooLarge, d.store.Limits().MaxFile)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &api.Error{
			Status: http.StatusRequestTimeout, Type: api.TypeInvalidRequest, Code: api.CodeTimeout,
			Message: "the request's body did not arrive in time",
		}
	}
	if failed {
		return errIncomplete
	}
	return err
}

// errIncomplete is about a form that breaks off.
var errIncomplete = api.BadRequest("incomplete_body", "", "the request's form did not arrive whole")

// uploadRate is the minimum average rate of an upload, in bytes per second.
const uploadRate = 8 << 10

// patientBody gives every read its own deadline: a large file may take long, but a client must not
// be silent or send a byte now and then.
type patientBody struct {
	io.ReadCloser
	control *http.ResponseController
	timeout time.Duration
	began   time.Time
	bytes   int64
	failed  bool // to the client's side
}

func (b *patientBody) Read(p []byte) (int, error) {
	now := time.Now()
	if b.began.IsZero() {
		b.began = now
	}
	until := b.began.Add(2*b.timeout + time.Duration(b.bytes/uploadRate)*time.Second)
	if soon := now.Add(b.timeout); soon.Before(until) {
		until = soon
	}
	_ = b.control.SetReadDeadline(until) // not every writer of a test has one
	n, err := b.ReadCloser.Read(p)
	b.bytes += int64(n)
	b.failed = b.failed || err != nil && !errors.Is(err, io.EOF)
	return n, err
}

// done takes the deadline away, which the server would take for a lost client.
func (b *patientBody) done() { _ = b.control.SetReadDeadline(time.Time{}) }

// uploadForm is the parsed form.
type uploadForm struct {
	door    *Door
	owner   string
	purpose string
	name    string
	upload  *batchqueue.Upload
}

func (f *uploadForm) abort() {
	if f.upload != nil {
		f.upload.Abort()
	}
}

func (f *uploadForm) read(parts *multipart.Reader) error {
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = f.field(part)
		}
		if err != nil {
			return malformed(err)
		}
	}
	switch {
	case f.purpose == "":
		return api.BadRequest(api.CodeMissing, "purpose", "the form has no 'purpose'")
	case f.purpose != batchqueue.PurposeInput:
		return api.Unsupported("purpose", "'purpose' must be '%s'", batchqueue.PurposeInput)
	case f.upload == nil:
		return api.BadRequest(api.CodeMissing, "file", "the form has no 'file'")
	}
	return nil
}

// malformed rewords the errors of package multipart; it returns other errors unchanged.
func malformed(err error) error {
	if _, ok := errors.AsType[textproto.ProtocolError](err); ok {
		return api.Invalid("file", "the form has a part whose header is malformed, such as a 'file' with a control character in its name")
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || strings.HasPrefix(err.Error(), "multipart: ") {
		return errIncomplete
	}
	return err
}

func (f *uploadForm) field(part *multipart.Part) error {
	switch name := part.FormName(); name {
	case "purpose":
		if f.purpose != "" {
			return api.Invalid(name, "'%s' comes twice", name)
		}
		value, err := io.ReadAll(io.LimitReader(part, 64))
		f.purpose = string(value)
		return err
	case "file":
		if f.upload != nil {
			return api.Invalid(name, "'%s' comes twice", name)
		}
		var err error
		if f.name, err = fileName(part.FileName()); err != nil {
			return err
		}
		if f.upload, err = f.door.store.Upload(f.owner); err != nil {
			return err
		}
		_, err = io.Copy(f.upload, part)
		return err
	case "expires_after[anchor]", "expires_after[seconds]", "expires_after":
		return api.Unsupported("expires_after", "'expires_after' is not supported: all files are kept for %v", f.door.store.Limits().Keep)
	case "":
		return api.Invalid("file", "the form has a part without a name, or a 'file' whose name is not quoted as it must be")
	default:
		return api.BadRequest(api.CodeUnknownField, api.Clip(name), "unknown field '%s'", api.Clip(name))
	}
}

// fileName returns what a client calls a file, within bounds.
func fileName(name string) (string, error) {
	if strings.ContainsFunc(name, unicode.IsControl) {
		return "", api.Invalid("file", "the name of 'file' has a control character")
	}
	name = strings.ToValidUTF8(name, "\uFFFD")
	for len(name) > nameMax {
		name = strings.ToValidUTF8(name[:nameMax], "")
	}
	return cmp.Or(name, "batch.jsonl"), nil
}

func wireFile(f *batchqueue.File) api.File {
	return api.File{
		ID: f.ID, Object: "file", Bytes: f.Bytes, CreatedAt: f.Created.Unix(), ExpiresAt: f.Expires.Unix(),
		Filename: f.Name, Purpose: f.Purpose, Status: "processed",
	}
}

// pageQuery is the query of a list.
type pageQuery struct {
	after, purpose string
	limit          int
	oldest         bool
}

// readPage reads the query of a list; files reports whether it is one of files.
func readPage(query url.Values, most, usual int, files bool) (q pageQuery, refused *api.Error) {
	q.limit = usual
	for name, values := range query {
		value := values[0]
		bad := api.Invalid(name, "the query parameter '%s' is not valid", name)
		switch {
		case name == "after":
			q.after = value
		case name == "limit":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > most {
				return q, bad
			}
			q.limit = n
		case name == "purpose" && files:
			q.purpose = value
		case name == "order" && files:
			if value != "asc" && value != "desc" {
				return q, bad
			}
			q.oldest = value == "asc"
		default:
			return q, api.BadRequest(api.CodeUnknownField, api.Clip(name), "unknown query parameter '%s'", api.Clip(name))
		}
	}
	return q, nil
}

// wireList returns a page of a list.
func wireList[S, T any](list []S, more bool, wire func(*S) T, id func(*T) string) api.List[T] {
	out := api.List[T]{Object: "list", Data: make([]T, 0, len(list)), HasMore: more}
	for i := range list {
		out.Data = append(out.Data, wire(&list[i]))
	}
	if n := len(out.Data); n > 0 {
		first, last := id(&out.Data[0]), id(&out.Data[n-1])
		out.FirstID, out.LastID = &first, &last
	}
	return out
}

// files is GET /v1/files.
func (d *Door) files(w http.ResponseWriter, r *http.Request) {
	q, refused := readPage(r.URL.Query(), 10_000, 10_000, true)
	if refused != nil {
		refused.Write(w)
		return
	}
	list, more, err := d.store.Files(d.opt.Owner(r), q.purpose, q.after, q.limit, q.oldest)
	if err != nil {
		d.fail(w, err)
		return
	}
	api.WriteJSON(w, http.StatusOK, wireList(list, more, wireFile, func(f *api.File) string { return f.ID }))
}

// file is GET /v1/files/{id}.
func (d *Door) file(w http.ResponseWriter, r *http.Request) {
	f, err := d.store.File(d.opt.Owner(r), r.PathValue("id"))
	if err != nil {
		d.fail(w, err)
		return
	}
	api.WriteJSON(w, http.StatusOK, wireFile(&f))
}

// content is GET /v1/files/{id}/content.
func (d *Door) content(w http.ResponseWriter, r *http.Request) {
	in, f, err := d.store.Content(d.opt.Owner(r), r.PathValue("id"))
	if err != nil {
		d.fail(w, err)
		return
	}
	defer in.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream") // text that a browser must not take for a page
	h.Set("Content-Length", strconv.FormatInt(f.Bytes, 10))
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	buf := make([]byte, downloadChunk)
	for {
		n, err := in.Read(buf)
		_ = control.SetWriteDeadline(time.Now().Add(d.opt.WriteTimeout)) // not every writer of a test has one
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return // the client has left
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			d.opt.Log.Error().Err(err).Str("file", f.ID).Msg("a file cannot be read")
			panic(http.ErrAbortHandler) // no client takes the part for the whole
		}
	}
}

// deleteFile is DELETE /v1/files/{id}.
func (d *Door) deleteFile(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if err := d.store.Delete(d.opt.Owner(r), id); err != nil {
		d.fail(w, err)
		return
	}
	api.WriteJSON(w, http.StatusOK, api.Deleted{ID: id, Object: "file", Deleted: true})
}
