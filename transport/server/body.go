package server

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"krater/actors/engine"
	"krater/transport/api"
)

// ReadBody reads a JSON request body within the size and time limits. The
// error is the answer for the client: 408, 413, 415 or 400.
func (s *Server) ReadBody(w http.ResponseWriter, r *http.Request) ([]byte, *api.Error) {
	if err := jsonContent(r); err != nil {
		return nil, err
	}
	if r.ContentLength > s.opt.MaxBody {
		w.Header().Set("Connection", "close") // the rest is not read
		return nil, s.tooLarge()
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(s.opt.BodyTimeout)) // not every writer of a test has one
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.opt.MaxBody))
	if err == nil {
		// Without this the server would take the deadline for a lost client.
		_ = control.SetReadDeadline(time.Time{})
		return data, nil
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

// jsonContent wants application/json: any other type a browser page could send
// from a foreign origin without asking first.
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

// decode reads and decodes the body into dst and checks the model it names; on
// an error it has answered and gives false.
func (s *Server) decode(w http.ResponseWriter, r *http.Request, dst any, model func() *string) (engine.Info, bool) {
	info := s.engine.Info()
	data, err := s.ReadBody(w, r)
	if err == nil {
		err = api.Decode(data, dst)
	}
	if err == nil {
		err = api.CheckModel(model(), info)
	}
	if err != nil {
		err.Write(w)
		return info, false
	}
	return info, true
}
