package batches

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

const fileHeader = `Content-Disposition: form-data; name="file"`

// upload sends a form whose second part has these header lines.
func (r *rig) upload(header, purpose string) (status int, text string) {
	r.t.Helper()
	return r.send("POST", "/v1/files", "multipart/form-data; boundary=b",
		"--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n"+purpose+"\r\n--b\r\n"+header+"\r\n\r\n{}\r\n--b--\r\n")
}

// TestOddForms: a form with an odd file name or part is refused with the field, or the name is
// kept; it is never the server's fault.
func TestOddForms(t *testing.T) {
	r := start(t, setup{idle: true})
	refusedParts := []string{
		"", "x", ": x", "Bad\x01Header: x", "Content-Disposition: form-data", `Content-Disposition: form-data; name="pur` + "\x00" + `pose"`,
		fileHeader + `; filename="a"; filename="b"`, fileHeader + "; filename=a b", fileHeader + `; filename="""`,
		fileHeader + "; filename*=UTF-8''a%01b", fileHeader + "; filename*=UTF-8''a%C2%85b", fileHeader + "; filename=\"a\u0085b\"",
	}
	for c := range rune(0x20) {
		refusedParts = append(refusedParts, fileHeader+`; filename="a`+string(c)+`b"`)
	}
	for _, header := range append(refusedParts, fileHeader+"; filename=\"a\x7fb\"") {
		if status, text := r.upload(header, "batch"); status != 400 || !strings.Contains(text, `"param":"file"`) {
			t.Errorf("%q: %d %s", header, status, text)
		}
	}
	for name, want := range map[string]string{
		"a\u2028b": `a\u2028b`, "日本": "日本", "a\xffb": "a\uFFFDb", `a\"b`: `a\"b`, "../../x": "x", "": "batch.jsonl", "a%00b": "a%00b",
		strings.Repeat("x", 70_000): strings.Repeat("x", nameMax),
	} {
		if status, text := r.upload(fileHeader+`; filename="`+name+`"`, "batch"); status != 200 || !strings.Contains(text, `"filename":"`+want+`"`) {
			t.Errorf("%.40q: %d %.500s", name, status, text)
		}
	}
	for _, purpose := range []string{"bat\x00ch", "batch\n", "\u2028", strings.Repeat("x", 100_000)} {
		if status, text := r.upload(fileHeader+`; filename="a"`, purpose); status != 400 || !strings.Contains(text, `"param":"purpose"`) {
			t.Errorf("purpose %.20q: %d %s", purpose, status, text)
		}
	}
}

// TestOddWords: control characters in ids, queries and metadata are the client's own.
func TestOddWords(t *testing.T) {
	r := start(t, setup{idle: true})
	file := r.submit("x", chatPath, "1h").InputFileID
	for path, want := range map[string]int{
		"/v1/files/%00": 404, "/v1/files/a%0ab": 404, "/v1/files/%ff": 404, "/v1/files/" + strings.Repeat("x", 40_000): 404,
		"/v1/files/%00/content": 404, "/v1/files?after=%00": 404, "/v1/files?purpose=%01": 200, "/v1/files?%00=1": 400,
		"/v1/batches/%00": 404, "/v1/batches?after=%ff": 404, "/v1/files?limit=%00": 400, "/v1/batches?limit": 400,
	} {
		if status, text := r.send("GET", path, "", ""); status != want {
			t.Errorf("%.40q: %d %.300s", path, status, text)
		}
	}
	for fields, want := range map[string]int{
		`"input_file_id":"\u0000"`:                                                          404,
		`"input_file_id":"` + strings.Repeat("x", 40_000) + `"`:                             404,
		fmt.Sprintf(`"input_file_id":%q,"endpoint":"\u0001"`, file):                         400,
		fmt.Sprintf(`"input_file_id":%q,"completion_window":"24\u0000h"`, file):             400,
		fmt.Sprintf(`"input_file_id":%q,"metadata":{"a\u0000":"\u0085\u2028\u001b"}`, file): 200,
	} {
		for _, f := range []string{`"endpoint":"` + chatPath + `"`, `"completion_window":"24h"`} {
			if name, _, _ := strings.Cut(f, ":"); !strings.Contains(fields, name) {
				fields += "," + f
			}
		}
		status, text := r.send("POST", "/v1/batches", "application/json", "{"+fields+"}")
		if status != want || status == 200 && !strings.Contains(text, `"a\u0000":"\u0085\u2028\u001b"`) {
			t.Errorf("%.80s: %d %.300s", fields, status, text)
		}
	}
}

// TestBrokenBody: an upload whose transfer coding is wrong is the client's fault.
func TestBrokenBody(t *testing.T) {
	r := start(t, setup{idle: true})
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	begun := "--xx\r\n" + fileHeader + "\r\n\r\n{}\n"
	fmt.Fprintf(conn, "POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\nnot a length\r\n", formKind, len(begun), begun)
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") || !strings.Contains(string(answer), "incomplete_body") {
		t.Errorf("%v %s", err, answer)
	}
}

// TestSeparators: the files of a batch can be read by readers that take U+2028 for the end of a
// line.
func TestSeparators(t *testing.T) {
	r := start(t, setup{})
	const text = `A\u2028B\u0085C`
	b := r.finish(r.submit(line("sep", "/v1/completions", `{"prompt":"`+text+`","echo":true,"max_tokens":1}`)+
		strings.ReplaceAll(line("bad", "/v1/completions", `{}`), `"bad"`, `"bad\u2028","more":"\u2029"`), "/v1/completions", "24h"))
	for _, id := range []*string{b.OutputFileID, b.ErrorFileID} {
		_, content := r.send("GET", "/v1/files/"+*id+"/content", "", "")
		if strings.ContainsAny(content, "\u0085\u2028\u2029") || strings.Count(content, "\n") != 1 {
			t.Errorf("%q", content)
		}
	}
	out := r.lines(b.OutputFileID)
	if len(out) != 1 || !strings.Contains(string(out[0].Response.Body), text) {
		t.Errorf("%+v", out)
	}
	if bad := r.lines(b.ErrorFileID); len(bad) != 1 || bad[0].CustomID == nil || *bad[0].CustomID != "bad\u2028" {
		t.Errorf("%+v", bad)
	}
}
