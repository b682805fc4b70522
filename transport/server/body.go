package server

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"krater/actors/engine"
	"krater/transport/api"
)

// ReadBody reads a JSON request body within the limits of size and time, and waits while too many
// bytes are in work. The caller calls done when the engine has taken the request or the answer is
// complete; more than one call is allowed. The error is the answer for the client: 408, 413, 415,
// 429 or 400; done is not needed then.
func (s *Server) ReadBody(w http.ResponseWriter, r *http.Request) (data []byte, done func(), refused *api.Error) {
	if err := jsonContent(r); err != nil {
		return nil, nil, err
	}
	if r.ContentLength > s.opt.MaxBody {
		w.Header().Set("Connection", "close") // the rest is not read
		return nil, nil, s.tooLarge()
	}
	size := r.ContentLength
	if size < 0 {
		size = s.opt.MaxBody // it is not known
	}
	done, err := s.Work(r.Context(), s.Peer(r), size)
	if err != nil {
		w.Header().Set("Connection", "close")
		return nil, nil, err
	}
	if data, err = s.readAll(w, r); err != nil {
		done()
		return nil, nil, err
	}
	return data, done, nil
}

func (s *Server) readAll(w http.ResponseWriter, r *http.Request) ([]byte, *api.Error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(s.opt.BodyTimeout)) // not every writer of a test has one
	buf := bytes.NewBuffer(make([]byte, 0, max(0, r.ContentLength)+bytes.MinRead))
	_, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, s.opt.MaxBody))
	if err == nil {
		// Without this the server would take the deadline for a lost client.
		_ = control.SetReadDeadline(time.Time{})
		return buf.Bytes(), nil
	}
	w.Header().Set("Connection", "close")
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, s.tooLarge()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, &api.Error{
			Status: http.StatusRequestTimeout, Type: api.TypeInvalidRequest, Code: api.CodeTimeout,
			Message: "the request's body did not arrive in time",
		}
	}
	return nil, api.BadRequest("incomplete_body", "", "the request's body did not arrive whole")
}

// jsonContent wants application/json: any other type a browser page could send from a foreign
// origin without asking first.
func jsonContent(r *http.Request) *api.Error {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset := params["charset"]
	if err == nil && kind == "application/json" && (charset == "" || strings.EqualFold(charset, "utf-8")) {
		if coding := r.Header.Get("Content-Encoding"); coding == "" || strings.EqualFold(coding, "identity") {
			return nil
		}
		return unsupportedMedia("a Content-Encoding is not supported")
	}
	return unsupportedMedia("the Content-Type must be application/json")
}

func unsupportedMedia(message string) *api.Error {
	return &api.Error{
		Status: http.StatusUnsupportedMediaType, Type: api.TypeInvalidRequest, Code: api.CodeUnsupportedType, Message: message,
	}
}

func (s *Server) tooLarge() *api.Error {
	return &api.Error{
		Status: http.StatusRequestEntityTooLarge, Type: api.TypeInvalidRequest, Code: api.CodeTooLarge,
		Message: fmt.Sprintf("the request is longer than %d bytes", s.opt.MaxBody),
	}
}

// decode reads and decodes the body into dst and checks the model it names. done is ReadBody's; it
// is nil after an error, which has been answered.
func (s *Server) decode(w http.ResponseWriter, r *http.Request, dst any, model func() *string) (info engine.Info, done func()) {
	return s.decodeFor(w, r, dst, model, api.CheckModel)
}

// decodeFor is decode with another check of the model.
func (s *Server) decodeFor(w http.ResponseWriter, r *http.Request, dst any, model func() *string, check func(*string, engine.Info) *api.Error) (info engine.Info, done func()) {
	info = s.engine.Info()
	data, done, err := s.ReadBody(w, r)
	if err == nil {
		if err = api.Decode(data, dst); err == nil {
			err = check(model(), info)
		}
		if err != nil {
			done()
		}
	}
	if err != nil {
		err.Write(w)
		return info, nil
	}
	return info, done
}
