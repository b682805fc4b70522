package batches

import (
	"encoding/json/jsontext"
	"net/http/httptest"
	"strings"
	"testing"

	"krater/scheduler/batchqueue"
)

// FuzzUpload sends any form: the answer is JSON and no fault of the server's, and a refused form
// leaves no file.
func FuzzUpload(f *testing.F) {
	f.Add("xx", form("purpose", "batch", "file", "x"))
	f.Add("xx", form("file", "x", "purpose", "batch", "purpose", "batch"))
	f.Add("xx", "--xx\r\nContent-Disposition: form-data; name=\"file\"; filename=\"\x00\x1b\"\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n=ZZ\r\n--xx--\r\n")
	f.Add("", "--\r\n\r\n----")
	store, err := batchqueue.Open(f.TempDir(), batchqueue.Options{MaxFile: 1 << 16, MaxFiles: 1 << 20})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { store.Close() })
	door := New(Options{Store: store})
	f.Fuzz(func(t *testing.T, boundary, body string) {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "/v1/files", strings.NewReader(body))
		r.Header.Set("Content-Type", `multipart/form-data; boundary="`+boundary+`"`)
		door.upload(w, r)
		if w.Code != 200 && (w.Code < 400 || w.Code >= 500) || !jsontext.Value(w.Body.Bytes()).IsValid() {
			t.Fatalf("%d %q", w.Code, w.Body)
		}
		files, _, err := store.Files("", "", "", 10, true)
		if err != nil || (w.Code == 200) != (len(files) == 1) {
			t.Fatalf("%d, and %d files, %v", w.Code, len(files), err)
		}
		for _, file := range files {
			if err := store.Delete("", file.ID); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := store.Totals(); err != nil || n.Bytes != 0 || door.uploads.Held("") != 0 {
			t.Fatalf("%d bytes are left, %v, %d uploads are open", n.Bytes, err, door.uploads.Held(""))
		}
	})
}
