package server

import (
	"net"
	"net/http"
	"slices"
	"strings"

	"krater/transport/api"
)

// local refuses requests that were not addressed to this machine by name. A web page can make its
// own name resolve to 127.0.0.1 (DNS rebinding); the browser then counts this server as the page's
// own, whatever the origin rules say.
func (s *Server) local(next http.Handler) http.Handler {
	if len(s.opt.Hosts) == 0 || slices.Contains(s.opt.Hosts, "*") {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.hostAllowed(r.Host) {
			(&api.Error{
				Status: http.StatusMisdirectedRequest, Type: api.TypeInvalidRequest, Code: "host_not_allowed",
				Message: "this server does not answer to that host name; allow it with --hosts",
			}).Write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) hostAllowed(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		return true
	}
	return slices.ContainsFunc(s.opt.Hosts, func(h string) bool { return strings.EqualFold(h, host) })
}
