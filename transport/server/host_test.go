package server

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"krater/transport/enginetest"
)

func TestHosts(t *testing.T) {
	for _, c := range []struct {
		hosts []string
		host  string
		ok    bool
	}{
		{nil, "evil.example", true},
		{[]string{"*"}, "evil.example", true},
		{[]string{"localhost"}, "localhost:8080", true},
		{[]string{"localhost"}, "LOCALHOST", true},
		{[]string{"localhost"}, "127.0.0.1:8080", true},
		{[]string{"localhost"}, "127.1.2.3", true},
		{[]string{"localhost"}, "[::1]:8080", true},
		{[]string{"localhost"}, "evil.example:8080", false},
		{[]string{"localhost"}, "192.168.1.2:8080", false},
		{[]string{"localhost"}, "localhost.evil.example", false},
		{[]string{"localhost"}, "", false},
		{[]string{"localhost", "box.example"}, "box.example", true},
	} {
		s := New(enginetest.New(), Options{Hosts: c.hosts})
		r := httptest.NewRequest(http.MethodGet, "/health", nil)
		r.Host = c.host
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if got := w.Code == http.StatusOK; got != c.ok {
			t.Errorf("hosts %q, Host %q: status %d", c.hosts, c.host, w.Code)
		}
		if !c.ok && w.Code != http.StatusMisdirectedRequest {
			t.Errorf("hosts %q, Host %q: status %d, want 421", c.hosts, c.host, w.Code)
		}
	}
}
