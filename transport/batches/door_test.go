package batches

import (
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"krater/scheduler/batchqueue"
	"krater/transport/api"
	"krater/transport/client"
)

// TestBatch: a batch over each endpoint comes back answered, in order, by the very handlers that
// answer everybody.
func TestBatch(t *testing.T) {
	r := start(t, setup{})
	for path, body := range map[string]string{
		chatPath:          `{"messages":[{"role":"user","content":"hi"}],"max_tokens":4}`,
		"/v1/completions": `{"prompt":"hi"}`,
		"/v1/responses":   `{"input":"hi"}`,
		"/v1/messages":    `{"max_tokens":4,"messages":[{"role":"user","content":"hi"}]}`,
	} {
		r.engine.Play(hello)
		var text strings.Builder
		for i := range 20 {
			text.WriteString(line(fmt.Sprintf("id %d", i), path, body))
		}
		text.WriteString(line("bad", path, strings.Replace(body, "{", `{"temperature":7,`, 1)))
		made := r.submit(text.String(), path, "24h")
		if made.Object != "batch" || made.Status != "validating" || made.Endpoint != path || made.Window != "24h" || made.ExpiresAt != made.CreatedAt+86400 {
			t.Errorf("%+v", made)
		}
		b := r.finish(made)
		if b.Status != "completed" || b.RequestCounts != (api.BatchCounts{Total: 21, Completed: 20, Failed: 1}) ||
			b.InProgressAt == nil || b.FinalizingAt == nil || b.CompletedAt == nil || b.FailedAt != nil || b.Errors != nil {
			t.Fatalf("%s: %+v", path, b)
		}
		for i, o := range r.lines(b.OutputFileID) {
			if *o.CustomID != fmt.Sprintf("id %d", i) || o.Response.StatusCode != 200 || o.Response.RequestID == "" || !strings.Contains(string(o.Response.Body), "Hello world!") {
				t.Errorf("%s %d: %+v", path, i, o)
			}
		}
		wrong := r.lines(b.ErrorFileID)
		if len(wrong) != 1 || *wrong[0].CustomID != "bad" || wrong[0].Response.StatusCode != 400 || !strings.Contains(string(wrong[0].Response.Body), "temperature") {
			t.Errorf("%s: %+v", path, wrong)
		}
		if path == "/v1/responses" && !strings.Contains(string(r.lines(b.OutputFileID)[0].Response.Body), `"store":false`) {
			t.Error("responses of a batch are kept for people to come back for")
		}
	}
	for _, q := range r.engine.Requests() {
		if !q.Background {
			t.Errorf("line %s is not in the background", q.ID)
		}
	}
}

// TestObjects: files and batches in the wire form, listed in pages.
func TestObjects(t *testing.T) {
	r := start(t, setup{idle: true})
	first := r.submit("x", chatPath, "1h")
	for range 4 {
		r.submit("x", "/v1/completions", "90s")
	}
	status, text := r.send("GET", "/v1/files/"+first.InputFileID, "", "")
	want := fmt.Sprintf(`{"id":"%s","object":"file","bytes":1,"created_at":1800000000,"expires_at":1802592000,"filename":"in.jsonl","purpose":"batch","status":"processed"}`+"\n", first.InputFileID)
	if status != 200 || text != want {
		t.Errorf("%d %s\nwant %s", status, text, want)
	}
	status, text = r.send("GET", "/v1/batches/"+first.ID, "", "")
	want = fmt.Sprintf(`{"id":"%s","object":"batch","endpoint":"/v1/chat/completions","model":"test-model","errors":null,"input_file_id":"%s","completion_window":"1h",`+
		`"status":"validating","output_file_id":null,"error_file_id":null,"created_at":1800000000,"in_progress_at":null,"expires_at":1800003600,"finalizing_at":null,"completed_at":null,`+
		`"failed_at":null,"expired_at":null,"cancelling_at":null,"cancelled_at":null,"request_counts":{"total":0,"completed":0,"failed":0},"metadata":null}`+"\n", first.ID, first.InputFileID)
	if status != 200 || text != want {
		t.Errorf("%d %s\nwant %s", status, text, want)
	}
	seen, after := 0, ""
	for more := true; more; {
		list, err := r.Batches(r.ctx(), after, 2)
		if err != nil || len(list.Data) == 0 || *list.FirstID != list.Data[0].ID {
			t.Fatalf("%+v, %v", list, err)
		}
		seen, more, after = seen+len(list.Data), list.HasMore, *list.LastID
	}
	if seen != 5 || after != first.ID {
		t.Errorf("%d batches, the last %s", seen, after)
	}
	if files, err := r.Files(r.ctx()); err != nil || len(files.Data) != 5 || files.HasMore || files.Data[4].ID != first.InputFileID {
		t.Errorf("%+v, %v", files, err)
	}
	if _, text := r.send("GET", "/v1/files?order=asc&limit=1&purpose=batch", "", ""); !strings.Contains(text, first.InputFileID) || !strings.Contains(text, `"has_more":true`) {
		t.Error(text)
	}
	if _, text := r.send("GET", "/v1/files?purpose=batch_output", "", ""); text != `{"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false}`+"\n" {
		t.Error(text)
	}
	_, err := r.CancelBatch(r.ctx(), first.ID)
	if err != nil {
		t.Error(err)
	}
	refused(t, r.DeleteFile(r.ctx(), first.InputFileID), 409, "file_in_use")
}

const formKind = "multipart/form-data; boundary=xx"

func form(parts ...string) string {
	var b strings.Builder
	for i := 0; i+1 < len(parts); i += 2 {
		name := fmt.Sprintf("name=%q", parts[i])
		if parts[i] == "file" {
			name += `; filename="a.jsonl"`
		}
		fmt.Fprintf(&b, "--xx\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n", name, parts[i+1])
	}
	return b.String() + "--xx--\r\n"
}

// refusal is a request that is refused, and words of the answer.
type refusal struct {
	method, path, kind, body string
	status                   int
	words                    string
}

// refusals are requests about files and batches; good is a form that is taken, and file the id
// of a file that is there.
func refusals(good, file string) []refusal {
	body := func(input, endpoint, window, more string) string {
		return fmt.Sprintf(`{"input_file_id":%q,"endpoint":%q,"completion_window":%q%s}`, input, endpoint, window, more)
	}
	many := `,"metadata":{`
	for i := range 17 {
		many += fmt.Sprintf(`"k%d":"v",`, i)
	}
	many = strings.TrimSuffix(many, ",") + "}"
	const asJSON = "application/json"
	return []refusal{
		{"POST", "/v1/files", asJSON, "{}", 415, "multipart"},
		{"POST", "/v1/files", formKind, form("file", "x"), 400, "purpose"},
		{"POST", "/v1/files", formKind, form("purpose", "batch"), 400, "'file'"},
		{"POST", "/v1/files", formKind, form("purpose", "fine-tune", "file", "x"), 400, "'purpose' must be"},
		{"POST", "/v1/files", formKind, form("purpose", "batch", "purpose", "batch", "file", "x"), 400, "twice"},
		{"POST", "/v1/files", formKind, form("file", "x", "file", "y"), 400, "twice"},
		{"POST", "/v1/files", formKind, form("colour", "red"), 400, "colour"},
		{"POST", "/v1/files", formKind, form("expires_after[seconds]", "3600"), 400, "expires_after"},
		{"POST", "/v1/files", formKind, good[:len(good)-8], 400, "whole"},
		{"POST", "/v1/files", formKind, "", 400, "purpose"},
		{"POST", "/v1/files", formKind, form("purpose", "batch", "file", strings.Repeat("x", 1001)), 413, "1000 bytes"},
		{"POST", "/v1/files", formKind, form("purpose", "batch", "file", strings.Repeat("x", 80_000)), 413, "1000 bytes"},
		{"GET", "/v1/files/file-1", "", "", 404, "file-1"},
		{"GET", "/v1/files/file-1/content", "", "", 404, "file-1"},
		{"DELETE", "/v1/files/file-1", "", "", 404, "file-1"},
		{"GET", "/v1/files?limit=0", "", "", 400, "limit"},
		{"GET", "/v1/files?order=up", "", "", 400, "order"},
		{"GET", "/v1/files?colour=red", "", "", 400, "colour"},
		{"GET", "/v1/files?after=file-1", "", "", 404, "file-1"},
		{"POST", "/v1/batches", asJSON, "{}", 400, "input_file_id"},
		{"POST", "/v1/batches", asJSON, `{"input_file_id":"a","endpoint":"b","completion_window":"1h","colour":1}`, 400, "colour"},
		{"POST", "/v1/batches", "text/plain", "{}", 415, "application/json"},
		{"POST", "/v1/batches", asJSON, body("file-1", chatPath, "24h", ""), 404, "file-1"},
		{"POST", "/v1/batches", asJSON, body(file, "/v1/embeddings", "24h", ""), 400, "endpoint"},
		{"POST", "/v1/batches", asJSON, body(file, "/v1/batches", "24h", ""), 400, "endpoint"},
		{"POST", "/v1/batches", asJSON, body(file, chatPath, "soon", ""), 400, "completion_window"},
		{"POST", "/v1/batches", asJSON, body(file, chatPath, "0.5s", ""), 400, "completion_window"},
		{"POST", "/v1/batches", asJSON, body(file, chatPath, "1000h", ""), 400, "completion_window"},
		{"POST", "/v1/batches", asJSON, body(file, chatPath, "24h", many), 400, "16"},
		{"POST", "/v1/batches", asJSON, body(file, chatPath, "24h", `,"metadata":{"a":"`+strings.Repeat("x", 513)+`"}`), 400, "512"},
		{"POST", "/v1/batches", asJSON, body(file, chatPath, "24h", `,"output_expires_after":{"anchor":"created_at","seconds":3600}`), 400, "output_expires_after"},
		{"GET", "/v1/batches?limit=101", "", "", 400, "limit"},
		{"GET", "/v1/batches?purpose=batch", "", "", 400, "purpose"},
		{"GET", "/v1/batches/batch_1", "", "", 404, "batch_1"},
		{"POST", "/v1/batches/batch_1/cancel", "", "", 404, "batch_1"},
		{"PUT", "/v1/files", "", "", 405, "GET, HEAD, POST"},
	}
}

// TestRefusals: what is wrong with a request is named, with its status.
func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	r := start(t, setup{dir: dir, idle: true, queue: batchqueue.Options{MaxFile: 1000}, origins: []string{"https://good.example"}})
	good := form("file", "x", "purpose", "batch")
	if status, text := r.send("POST", "/v1/files", formKind, good, "Origin", "https://good.example"); status != 200 || !strings.Contains(text, `"filename":"a.jsonl"`) {
		t.Errorf("%d %s", status, text)
	}
	f, err := r.Upload(r.ctx(), "in", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range refusals(good, f.ID) {
		status, text := r.send(c.method, c.path, c.kind, c.body)
		if status != c.status || !strings.Contains(text, c.words) || !strings.Contains(text, `{"error":{"message":`) {
			t.Errorf("%s %s %.80q: %d %s, want %d with %q", c.method, c.path, c.body, status, text, c.status, c.words)
		}
	}
	if status, text := r.send("POST", "/v1/files", formKind, good, "Origin", "https://evil.example"); status != 403 || !strings.Contains(text, "origin") {
		t.Errorf("a page of another origin: %d %s", status, text)
	}
	entries, err := os.ReadDir(dir + "/files")
	if err != nil || len(entries) != 2 {
		t.Errorf("refused uploads left something: %v, %v", entries, err)
	}
}

// TestDeclaredLength: a body that says it is too long is refused before it is sent.
func TestDeclaredLength(t *testing.T) {
	r := start(t, setup{idle: true, queue: batchqueue.Options{MaxFile: 1000}})
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: 300000000\r\n\r\n", formKind)
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	head := make([]byte, 12)
	if _, err := io.ReadFull(conn, head); err != nil || string(head) != "HTTP/1.1 413" {
		t.Errorf("%q, %v", head, err)
	}
}

// TestSilentUpload: who stops sending is not waited for for ever, and leaves nothing.
func TestSilentUpload(t *testing.T) {
	dir := t.TempDir()
	r := start(t, setup{dir: dir, idle: true, door: Options{BodyTimeout: 50 * time.Millisecond}})
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	part := form("purpose", "batch", "file", "x")
	fmt.Fprintf(conn, "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: 100000\r\n\r\n%s", formKind, part[:len(part)-10])
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	head := make([]byte, 12)
	if _, err := io.ReadFull(conn, head); err != nil || string(head) != "HTTP/1.1 408" {
		t.Errorf("%q, %v", head, err)
	}
	if entries, err := os.ReadDir(dir + "/files"); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestTricklingUpload: who sends a byte now and then is not waited for for as long as a file has
// bytes.
func TestTricklingUpload(t *testing.T) {
	r := start(t, setup{idle: true, door: Options{BodyTimeout: 500 * time.Millisecond}})
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	part := form("purpose", "batch", "file", "x")
	fmt.Fprintf(conn, "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: 100000\r\n\r\n%s", formKind, part[:len(part)-10])
	trickled := make(chan struct{})
	go func() {
		defer close(trickled)
		for {
			if _, err := conn.Write([]byte("x")); err != nil {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	_ = conn.SetReadDeadline(time.Now().Add(patience / 4))
	head := make([]byte, 12)
	if _, err := io.ReadFull(conn, head); err != nil || string(head) != "HTTP/1.1 408" {
		t.Errorf("%q, %v", head, err)
	}
	conn.Close()
	<-trickled
}

// TestUploadsOfOneKey: a key that begins uploads and sends nothing leaves places for another's, and
// its own come back when it goes.
func TestUploadsOfOneKey(t *testing.T) {
	r := start(t, setup{idle: true, keys: []string{"key-of-many", "key-of-one"}, key: "key-of-one"})
	begin := func() net.Conn {
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		fmt.Fprintf(conn, "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: key-of-many\r\nContent-Type: %s\r\nContent-Length: 100000\r\n\r\n", formKind)
		return conn
	}
	of := httptest.NewRequest("GET", "/", nil)
	of.Header.Set("X-Api-Key", "key-of-many")
	wait := func(want int) {
		t.Helper()
		for late := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			n := r.door.uploads.Held(r.server.Owner(of))
			if n == want {
				return
			}
			if time.Now().After(late) {
				t.Fatalf("%d uploads are open, want %d", n, want)
			}
		}
	}
	const share = maxUploads - maxUploads/4
	var held []net.Conn
	for range share {
		held = append(held, begin())
	}
	wait(share)
	head := make([]byte, 12)
	one := begin()
	_ = one.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(one, head); err != nil || string(head) != "HTTP/1.1 429" {
		t.Errorf("one more of the key: %q, %v", head, err)
	}
	if _, err := r.Upload(t.Context(), "lines.jsonl", strings.NewReader("x\n")); err != nil {
		t.Errorf("another key's: %v", err)
	}
	for _, conn := range held {
		conn.Close()
	}
	wait(0)
}

// TestKeys: with keys each sees its own files and batches only.
func TestKeys(t *testing.T) {
	r := start(t, setup{keys: []string{"mine-mine", "yours-yours"}, key: "mine-mine"})
	r.engine.Choose(echo)
	b := r.finish(r.submit(chats(3), chatPath, "24h"))
	if b.Status != "completed" || b.RequestCounts.Completed != 3 {
		t.Fatalf("%+v", b)
	}
	you := client.New(r.url, "yours-yours", r.http)
	for _, id := range []string{b.InputFileID, *b.OutputFileID} {
		_, err := you.File(r.ctx(), id)
		refused(t, err, 404, "not_found")
		_, err = you.Content(r.ctx(), id)
		refused(t, err, 404, "not_found")
		refused(t, you.DeleteFile(r.ctx(), id), 404, "not_found")
	}
	_, err := you.Batch(r.ctx(), b.ID)
	refused(t, err, 404, "not_found")
	_, err = you.CancelBatch(r.ctx(), b.ID)
	refused(t, err, 404, "not_found")
	path, window := chatPath, "24h"
	_, err = you.CreateBatch(r.ctx(), api.BatchRequest{InputFileID: &b.InputFileID, Endpoint: &path, Window: &window})
	refused(t, err, 404, "not_found")
	if list, err := you.Batches(r.ctx(), "", 10); err != nil || len(list.Data) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := you.Files(r.ctx()); err != nil || len(list.Data) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	for _, path := range []string{"/v1/files", "/v1/batches", "/v1/batches/" + b.ID, "/v1/files/" + b.InputFileID + "/content"} {
		if status, text := r.send("GET", path, "", ""); status != 401 {
			t.Errorf("%s without a key: %d %s", path, status, text)
		}
	}
	if status, text := r.send("POST", "/v1/files", formKind, form("purpose", "batch", "file", "x")); status != 401 {
		t.Errorf("an upload without a key: %d %s", status, text)
	}
	for _, id := range []string{b.InputFileID, *b.OutputFileID} {
		if err := r.DeleteFile(r.ctx(), id); err != nil {
			t.Error(err)
		}
		_, err := r.File(r.ctx(), id)
		refused(t, err, 404, "not_found")
	}
}

// TestFailedFile: a file that cannot be run fails its batch with what is wrong.
func TestFailedFile(t *testing.T) {
	r := start(t, setup{})
	b := r.finish(r.submit("{\n"+line("a", "/v1/completions", "{}"), chatPath, "24h"))
	if b.Status != "failed" || b.FailedAt == nil || b.Errors == nil || b.Errors.Object != "list" || len(b.Errors.Data) != 2 || b.OutputFileID != nil {
		t.Fatalf("%+v", b)
	}
	for i, code := range []string{"invalid_json_line", "invalid_url"} {
		if e := b.Errors.Data[i]; e.Code != code || e.Line == nil || *e.Line != i+1 {
			t.Errorf("%+v", e)
		}
	}
	b = r.finish(r.submit("", chatPath, "24h"))
	if b.Status != "failed" || b.Errors.Data[0].Code != "empty_file" || b.Errors.Data[0].Line != nil {
		t.Errorf("%+v", b)
	}
}

// TestMetrics: lines and batches are counted by state.
func TestMetrics(t *testing.T) {
	r := start(t, setup{door: Options{InFlight: 2}})
	gate := make(chan struct{})
	r.engine.Play(gated(gate))
	b := r.submit(chats(5)+"{\n", chatPath, "24h")
	if err := r.engine.WaitOpen(r.ctx(), 2); err != nil {
		t.Fatal(err)
	}
	has := func(lines ...string) {
		t.Helper()
		_, text := r.send("GET", "/metrics", "", "")
		for _, l := range lines {
			if !strings.Contains("\n"+text, "\n"+l+"\n") {
				t.Errorf("no line %q", l)
			}
		}
	}
	has(`krater:batch_lines{state="waiting"} 3`, `krater:batch_lines{state="running"} 2`, `krater:batch_lines{state="failed"} 1`,
		`krater:batches{status="in_progress"} 1`, `krater:batches{status="completed"} 0`)
	close(gate)
	r.finish(b)
	has(`krater:batch_lines{state="waiting"} 0`, `krater:batch_lines{state="running"} 0`, `krater:batch_lines{state="completed"} 5`,
		`krater:batches{status="in_progress"} 0`, `krater:batches{status="completed"} 1`, "# TYPE krater:batch_store_bytes gauge")
}
