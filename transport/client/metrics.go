package client

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// Metrics are the samples of a scrape by name with labels, as the server wrote them:
// krater:request_success{finished_reason="stop"}.
type Metrics map[string]float64

// Metrics reads GET /metrics.
func (c *Client) Metrics(ctx context.Context) (Metrics, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	res, err := c.do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	return parseMetrics(data)
}

// parseMetrics reads the Prometheus text format. It ignores comments, timestamps and exemplars.
func parseMetrics(data []byte) (Metrics, error) {
	m := Metrics{}
	in := bufio.NewScanner(bytes.NewReader(data))
	in.Buffer(nil, maxEvent)
	for in.Scan() {
		line := strings.TrimSpace(in.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		// A label's value may hold spaces and braces: the name ends behind the last brace that is
		// followed by a space.
		end := strings.IndexByte(line, ' ')
		if strings.IndexByte(line, '{') >= 0 {
			if end = strings.LastIndex(line, "} ") + 1; end == 0 {
				return nil, fmt.Errorf("metrics: %q", line)
			}
		}
		if end < 0 {
			return nil, fmt.Errorf("metrics: %q", line)
		}
		fields := strings.Fields(line[end:])
		if len(fields) == 0 {
			return nil, fmt.Errorf("metrics: %q", line)
		}
		v, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			return nil, fmt.Errorf("metrics: %q: %w", line, err)
		}
		m[line[:end]] = v
	}
	return m, in.Err()
}

// Sum adds the samples of a name up, over all labels; found reports whether there is one.
func (m Metrics) Sum(name string) (sum float64, found bool) {
	for key, v := range m {
		if rest, ok := strings.CutPrefix(key, name); ok && (rest == "" || rest[0] == '{') {
			sum, found = sum+v, true
		}
	}
	return sum, found
}
