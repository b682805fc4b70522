package batches

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"krater/scheduler/batchqueue"
	"krater/transport/api"
)

// The bounds of a batch's completion window, and of its metadata.
const (
	windowLeast  = time.Second
	windowMost   = 7 * 24 * time.Hour
	metadataMax  = 16
	metadataKey  = 64  // bytes
	metadataText = 512 // bytes
)

// create is POST /v1/batches.
func (d *Door) create(w http.ResponseWriter, r *http.Request) {
	if err := d.opt.Ready(); err != nil {
		d.fail(w, err)
		return
	}
	data, done, refused := d.opt.ReadBody(w, r)
	var b api.BatchRequest
	if refused == nil {
		defer done()
		refused = api.Decode(data, &b)
	}
	var o batchqueue.Order
	if refused == nil {
		o, refused = d.order(&b)
	}
	if refused != nil {
		refused.Write(w)
		return
	}
	o.Owner = d.opt.Owner(r)
	batch, err := d.store.Create(o)
	if err != nil {
		d.fail(w, err)
		return
	}
	d.runner.poke()
	api.WriteJSON(w, http.StatusOK, wireBatch(&batch))
}

// order checks a request for a batch.
func (d *Door) order(b *api.BatchRequest) (o batchqueue.Order, refused *api.Error) {
	for _, f := range []struct {
		name  string
		value *string
	}{{"input_file_id", b.InputFileID}, {"endpoint", b.Endpoint}, {"completion_window", b.Window}} {
		if f.value == nil {
			return o, api.BadRequest(api.CodeMissing, f.name, "'%s' is missing", f.name)
		}
	}
	if !slices.Contains(d.opt.Endpoints, *b.Endpoint) {
		return o, api.Invalid("endpoint", "'endpoint' must be one of %s", strings.Join(d.opt.Endpoints, ", "))
	}
	within, err := time.ParseDuration(*b.Window)
	if err != nil || within < windowLeast || within > windowMost {
		return o, api.Invalid("completion_window", "'completion_window' must be a time of %v to %v such as 24h", windowLeast, windowMost)
	}
	if b.OutputExpiresAfter != nil {
		return o, api.Unsupported("output_expires_after", "'output_expires_after' is not supported: all files are kept for %v", d.store.Limits().Keep)
	}
	if b.Metadata != nil {
		if err := checkMetadata(*b.Metadata); err != nil {
			return o, err
		}
		o.Metadata = *b.Metadata
	}
	o.Input, o.Endpoint, o.Window, o.Within, o.Model = *b.InputFileID, *b.Endpoint, *b.Window, within, d.opt.Model
	return o, nil
}

func checkMetadata(m map[string]string) *api.Error {
	if len(m) > metadataMax {
		return api.Invalid("metadata", "'metadata' has more than %d entries", metadataMax)
	}
	for k, v := range m {
		if len(k) > metadataKey || len(v) > metadataText {
			return api.Invalid("metadata", "'metadata' may have keys of %d and values of %d bytes", metadataKey, metadataText)
		}
	}
	return nil
}

// batches is GET /v1/batches.
func (d *Door) batches(w http.ResponseWriter, r *http.Request) {
	q, refused := readPage(r.URL.Query(), 100, 20, false)
	if refused != nil {
		refused.Write(w)
		return
	}
	list, more, err := d.store.Batches(d.opt.Owner(r), q.after, q.limit)
	if err != nil {
		d.fail(w, err)
		return
	}
	api.WriteJSON(w, http.StatusOK, wireList(list, more, wireBatch, func(b *api.Batch) string { return b.ID }))
}

// batch is GET /v1/batches/{id}.
func (d *Door) batch(w http.ResponseWriter, r *http.Request) {
	b, err := d.store.Batch(d.opt.Owner(r), r.PathValue("id"))
	if err != nil {
		d.fail(w, err)
		return
	}
	api.WriteJSON(w, http.StatusOK, wireBatch(&b))
}

// cancel is POST /v1/batches/{id}/cancel. It answers at once; lines in flight end.
func (d *Door) cancel(w http.ResponseWriter, r *http.Request) {
	b, err := d.store.Cancel(d.opt.Owner(r), r.PathValue("id"))
	if err != nil {
		d.fail(w, err)
		return
	}
	d.runner.halt(b.ID)
	d.runner.poke()
	api.WriteJSON(w, http.StatusOK, wireBatch(&b))
}

func wireBatch(b *batchqueue.Batch) api.Batch {
	out := api.Batch{
		ID: b.ID, Object: "batch", Endpoint: b.Endpoint, Model: b.Model, InputFileID: b.Input, Window: b.Window,
		Status: string(b.Status), OutputFileID: named(b.Output), ErrorFileID: named(b.Errors),
		CreatedAt: b.Created.Unix(), ExpiresAt: b.Expires.Unix(),
		InProgressAt: when(b.InProgressAt), FinalizingAt: when(b.FinalizingAt), CancellingAt: when(b.CancellingAt),
		RequestCounts: api.BatchCounts{Total: b.Counts.Total, Completed: b.Counts.Completed, Failed: b.Counts.Failed},
	}
	if b.Metadata != nil {
		out.Metadata = &b.Metadata
	}
	ended := when(b.EndedAt)
	switch b.Status {
	case batchqueue.Completed:
		out.CompletedAt = ended
	case batchqueue.Failed:
		out.FailedAt = ended
	case batchqueue.Expired:
		out.ExpiredAt = ended
	case batchqueue.Cancelled:
		out.CancelledAt = ended
	}
	if len(b.Faults) > 0 {
		out.Errors = &api.BatchErrors{Object: "list"}
		for _, f := range b.Faults {
			e := api.BatchError{Code: f.Code, Message: f.Message, Param: named(f.Param)}
			if f.Line > 0 {
				e.Line = &f.Line
			}
			out.Errors.Data = append(out.Errors.Data, e)
		}
	}
	return out
}

// named is nil for "".
func named(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// when is nil for a time that did not come.
func when(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	n := t.Unix()
	return &n
}
