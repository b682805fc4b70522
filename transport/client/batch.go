package client

import (
	"context"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"krater/transport/api"
)

// Upload sends a file of lines for a batch. It is read to its end and never held in memory.
func (c *Client) Upload(ctx context.Context, name string, content io.Reader) (*api.File, error) {
	body, in := io.Pipe()
	form := multipart.NewWriter(in)
	go func() {
		err := form.WriteField("purpose", "batch")
		var part io.Writer
		if err == nil {
			part, err = form.CreateFormFile("file", name)
		}
		if err == nil {
			_, err = io.Copy(part, content)
		}
		if err == nil {
			err = form.Close()
		}
		in.CloseWithError(err)
	}()
	defer body.Close() // ends the goroutine when the server did not read it all
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/v1/files", body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", form.FormDataContentType())
	out := &api.File{}
	return out, c.whole(req, out)
}

// Files lists the newest files.
func (c *Client) Files(ctx context.Context) (*api.List[api.File], error) {
	out := &api.List[api.File]{}
	return out, c.get(ctx, "/v1/files", out)
}

// File describes a file.
func (c *Client) File(ctx context.Context, id string) (*api.File, error) {
	out := &api.File{}
	return out, c.get(ctx, "/v1/files/"+url.PathEscape(id), out)
}

// Content reads a file as it arrives. The caller closes it. If the answer breaks off, Read returns
// an error.
func (c *Client) Content(ctx context.Context, id string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/v1/files/"+url.PathEscape(id)+"/content", nil)
	if err != nil {
		return nil, err
	}
	res, err := c.do(req)
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// DeleteFile removes a file.
func (c *Client) DeleteFile(ctx context.Context, id string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, c.base+"/v1/files/"+url.PathEscape(id), nil)
	if err != nil {
		return err
	}
	return c.whole(req, &api.Deleted{})
}

// CreateBatch makes a batch of an uploaded file.
func (c *Client) CreateBatch(ctx context.Context, req api.BatchRequest) (*api.Batch, error) {
	out := &api.Batch{}
	return out, c.post(ctx, "/v1/batches", &req, out)
}

// Batches lists at most limit batches, newest first, starting behind the batch with id after ("":
// from the newest).
func (c *Client) Batches(ctx context.Context, after string, limit int) (*api.List[api.Batch], error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	if after != "" {
		q.Set("after", after)
	}
	out := &api.List[api.Batch]{}
	return out, c.get(ctx, "/v1/batches?"+q.Encode(), out)
}

// Batch returns the state of a batch.
func (c *Client) Batch(ctx context.Context, id string) (*api.Batch, error) {
	out := &api.Batch{}
	return out, c.get(ctx, "/v1/batches/"+url.PathEscape(id), out)
}

// CancelBatch asks for a batch's end.
func (c *Client) CancelBatch(ctx context.Context, id string) (*api.Batch, error) {
	out := &api.Batch{}
	return out, c.post(ctx, "/v1/batches/"+url.PathEscape(id)+"/cancel", struct{}{}, out)
}

// WaitBatch polls a batch until it has ended. It calls seen, which may be nil, with each state.
func (c *Client) WaitBatch(ctx context.Context, id string, every time.Duration, seen func(*api.Batch)) (*api.Batch, error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		b, err := c.Batch(ctx, id)
		if err != nil {
			return b, err
		}
		if seen != nil {
			seen(b)
		}
		if b.Ended() {
			return b, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return b, ctx.Err()
		}
	}
}
