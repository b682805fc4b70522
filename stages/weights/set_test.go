package weights

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"krater/kernels/tensor"
	"krater/scheduler/files"
	"krater/stages/weights/safetensors"
)

// shard writes a safetensors file with one U8 tensor of n bytes under each name.
func shard(names ...string) []byte {
	header := map[string]any{}
	for i, n := range names {
		header[n] = map[string]any{"dtype": "U8", "shape": []int{2}, "data_offsets": []int{2 * i, 2*i + 2}}
	}
	h, err := json.Marshal(header)
	if err != nil {
		panic(err)
	}
	b := []byte{byte(len(h)), byte(len(h) >> 8), 0, 0, 0, 0, 0, 0}
	b = append(b, h...)
	for i := range 2 * len(names) {
		b = append(b, byte(i))
	}
	return b
}

const (
	first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
)

// index writes an index of tensor, shard pairs.
func index(pairs ...string) []byte {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	b, err := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": 8}, "weight_map": m})
	if err != nil {
		panic(err)
	}
	return b
}

// sharded is a good model of two shards.
func sharded() map[string][]byte {
	return map[string][]byte{
		indexFile: index("a", first, "b", first, "c", second),
		first:     shard("a", "b"),
		second:    shard("c"),
		// Neither is a part of the model, so neither is a stray.
		"golden.safetensors": []byte("anything"),
		"config.json":        []byte("{}"),
	}
}

// onDisk writes files to a folder.
func onDisk(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// both opens the files from disk and from memory.
func both(t *testing.T, files map[string][]byte, check func(t *testing.T, s *Set, err error)) {
	t.Helper()
	t.Run("disk", func(t *testing.T) {
		s, err := Open(onDisk(t, files))
		check(t, s, err)
		if s != nil {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("memory", func(t *testing.T) {
		s, err := FromBytes(files)
		check(t, s, err)
	})
}

func TestSharded(t *testing.T) {
	both(t, sharded(), func(t *testing.T, s *Set, err error) {
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(s.Names(), []string{"a", "b", "c"}) || s.Bytes() != 6 {
			t.Errorf("%v, %d bytes", s.Names(), s.Bytes())
		}
		b, ok := s.Tensor("b")
		if !ok || b.DType != tensor.U8 || !slices.Equal(b.Shape, []int{2}) || string(b.Data) != "\x02\x03" {
			t.Errorf("%+v, %v", b, ok)
		}
		if _, ok := s.Tensor("d"); ok {
			t.Error("has a tensor d")
		}
		n := 0
		for name, got := range s.All() {
			if want, _ := s.Tensor(name); &got.Data[0] != &want.Data[0] {
				t.Errorf("%s differs", name)
			}
			n++
			if n == 2 {
				break
			}
		}
	})
}

func TestSingle(t *testing.T) {
	files := map[string][]byte{singleFile: shard("x"), "goldens.safetensors": nil, "adapter-00001-of-00002.safetensors": nil}
	both(t, files, func(t *testing.T, s *Set, err error) {
		if err != nil || !slices.Equal(s.Names(), []string{"x"}) {
			t.Fatalf("%v, %v", s, err)
		}
	})
}

// TestBroken: every way in which files and index can disagree.
func TestBroken(t *testing.T) {
	type files = map[string][]byte
	tests := []struct {
		name   string
		change func(f files)
		want   error
		says   string
	}{
		{"nothing", func(f files) { clear(f) }, ErrNoWeights, ""},
		{"shards without an index", func(f files) { delete(f, indexFile) }, ErrIndex, indexFile},
		{"shard missing", func(f files) { delete(f, second) }, ErrShardMissing, second},
		{"all shards missing", func(f files) { delete(f, first); delete(f, second) }, ErrShardMissing, first + ", " + second},
		{"stray shard", func(f files) { f["model-00003-of-00003.safetensors"] = shard("z") }, ErrShardStray, "model-00003-of-00003"},
		{"single file beside shards", func(f files) { f[singleFile] = shard("z") }, ErrShardStray, singleFile},
		{"shards beside a single file", func(f files) { delete(f, indexFile); f[singleFile] = shard("z") }, ErrShardStray, first},
		{"tensor missing", func(f files) { f[first] = shard("a") }, ErrTensorMissing, `"b"`},
		{"tensor stray", func(f files) { f[second] = shard("c", "d") }, ErrTensorStray, `"d"`},
		{"tensor in two shards", func(f files) { f[second] = shard("a", "c") }, ErrDuplicate, `"a"`},
		{"tensor in two shards, listed in the later", func(f files) { f[first] = shard("a", "b", "c") }, ErrDuplicate, `"c"`},
		{"tensor in another shard", func(f files) { f[first], f[second] = shard("a"), shard("b", "c") }, ErrTensorStray, first},
		{"shard empty", func(f files) { f[second] = nil }, safetensors.ErrTooShort, second},
		{"shard cut", func(f files) { f[second] = f[second][:len(f[second])-1] }, safetensors.ErrTruncated, second},
		{"index empty", func(f files) { f[indexFile] = nil }, ErrIndex, ""},
		{"index not JSON", func(f files) { f[indexFile] = []byte("{") }, ErrIndex, ""},
		{"index without map", func(f files) { f[indexFile] = []byte(`{"metadata":{}}`) }, ErrIndex, "weight_map"},
		{"index map of numbers", func(f files) { f[indexFile] = []byte(`{"weight_map":{"a":1}}`) }, ErrIndex, ""},
		{"index lists a tensor twice", func(f files) {
			f[indexFile] = fmt.Appendf(nil, `{"weight_map":{"a":%q,"b":%q,"c":%q,"a":%q}}`, first, first, second, second)
		}, ErrIndex, ""},
		{"shard in a parent folder", func(f files) { f[indexFile] = index("a", "../x.safetensors") }, ErrShardName, "../x"},
		{"shard at an absolute path", func(f files) { f[indexFile] = index("a", "/etc/x.safetensors") }, ErrShardName, ""},
		{"shard in a folder", func(f files) { f[indexFile] = index("a", "sub/x.safetensors") }, ErrShardName, ""},
		{"shard with a backslash", func(f files) { f[indexFile] = index("a", `..\x.safetensors`) }, ErrShardName, ""},
		{"shard of another type", func(f files) { f[indexFile] = index("a", "config.json") }, ErrShardName, ""},
		{"shard without a name", func(f files) { f[indexFile] = index("a", "") }, ErrShardName, ""},
		{"shard named ..", func(f files) { f[indexFile] = index("a", "..") }, ErrShardName, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := maps.Clone(sharded())
			tt.change(f)
			both(t, f, func(t *testing.T, s *Set, err error) {
				if !errors.Is(err, tt.want) || s != nil {
					t.Fatalf("%v, want %v", err, tt.want)
				}
				if !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%v does not name %s", err, tt.says)
				}
			})
		})
	}
}

// TestManyMissing: a wrong index makes a short message.
func TestManyMissing(t *testing.T) {
	var pairs []string
	for i := range 1000 {
		pairs = append(pairs, fmt.Sprint("t", i), first)
	}
	_, err := FromBytes(map[string][]byte{indexFile: index(pairs...), first: shard()})
	if !errors.Is(err, ErrTensorMissing) || !strings.HasSuffix(err.Error(), "and 995 more") || len(err.Error()) > 400 {
		t.Error(err)
	}
}

// TestNotRegular: a pipe does not hang the start, a folder is named.
func TestNotRegular(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, singleFile), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, files.ErrNotRegular) {
		t.Errorf("pipe: %v", err)
	}
	dir = t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, singleFile), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, files.ErrNotRegular) {
		t.Errorf("folder: %v", err)
	}
	if _, err := Open(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent folder: %v", err)
	}
}

// TestHalfDownloads: what is left of a download that has not ended is named as what it is.
func TestHalfDownloads(t *testing.T) {
	pointer := []byte("version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("0", 64) + "\nsize 14149960\n")
	for name, x := range map[string]struct {
		change func(files map[string][]byte)
		want   error
		words  string
	}{
		"pointer for a shard":   {func(f map[string][]byte) { f[second] = pointer }, files.ErrPointer, "git lfs pull --include " + second},
		"pointer for the index": {func(f map[string][]byte) { f[indexFile] = pointer }, files.ErrPointer, indexFile},
		"pointer for all weights": {func(f map[string][]byte) {
			delete(f, indexFile)
			delete(f, first)
			delete(f, second)
			f[singleFile] = pointer
		}, files.ErrPointer, singleFile},
		"an empty shard":      {func(f map[string][]byte) { f[second] = nil }, safetensors.ErrTooShort, second + ": file too short for a safetensors header: 0 bytes; its download may not have ended"},
		"a cut shard":         {func(f map[string][]byte) { f[second] = f[second][:len(f[second])-1] }, safetensors.ErrTruncated, "its download may not have ended"},
		"an unfinished shard": {func(f map[string][]byte) { f[second+".incomplete"] = f[second]; delete(f, second) }, ErrShardMissing, second + ".incomplete is there"},
		"shards, no index":    {func(f map[string][]byte) { delete(f, indexFile) }, ErrIndex, indexFile + " is missing"},
	} {
		f := sharded()
		x.change(f)
		if _, err := Open(onDisk(t, f)); !errors.Is(err, x.want) || !strings.Contains(err.Error(), x.words) {
			t.Errorf("%s: %v", name, err)
		}
	}
	dir := onDisk(t, map[string][]byte{singleFile: shard("a")})
	if err := os.Symlink("../blobs/gone", filepath.Join(dir, indexFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, files.ErrDangling) || !strings.Contains(err.Error(), "../blobs/gone") {
		t.Errorf("a link to an index that is gone: %v", err)
	}
}

// TestLinks: download caches hold links; a broken one is a missing shard.
func TestLinks(t *testing.T) {
	blobs := onDisk(t, sharded())
	dir := t.TempDir()
	for _, name := range []string{indexFile, first, second} {
		if err := os.Symlink(filepath.Join(blobs, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(blobs, second)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrShardMissing) {
		t.Error(err)
	}
}

func TestClose(t *testing.T) {
	s, err := Open(onDisk(t, sharded()))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, ok := s.Tensor("a"); ok || len(s.Names()) != 0 {
		t.Error("a closed set still gives tensors")
	}
}

// TestZeroCopy: data from memory stays where it is, and the default model opens
// from its folder with the size its index states.
func TestZeroCopy(t *testing.T) {
	f := sharded()
	s, err := FromBytes(f)
	if err != nil {
		t.Fatal(err)
	}
	c, _ := s.Tensor("c")
	if unsafe.SliceData(c.Data) != &f[second][len(f[second])-2] {
		t.Error("copied")
	}
	tiny, err := Open("../../models/krater-tiny")
	if err != nil {
		t.Fatal(err)
	}
	defer tiny.Close()
	if tiny.Bytes() != 32768384 {
		t.Errorf("%d bytes", tiny.Bytes())
	}
	for name, w := range tiny.All() {
		if w.DType != tensor.BF16 {
			t.Errorf("%s is %s", name, w.DType)
		}
	}
}

// TestUnaligned: a file at an odd address is copied to where F32 can be read.
func TestUnaligned(t *testing.T) {
	// The header is padded so that data starts at a multiple of 8 of the file.
	header := `{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`
	header += strings.Repeat(" ", (8-len(header)%8)%8)
	file := append([]byte{byte(len(header)), 0, 0, 0, 0, 0, 0, 0}, header+"ABCDEFGH"...)
	buf := make([]byte, len(file)+8)
	for shift := range 8 {
		at := buf[shift:][:len(file)]
		copy(at, file)
		s, err := FromBytes(map[string][]byte{singleFile: at})
		if err != nil {
			t.Fatalf("shifted by %d: %v", shift, err)
		}
		x, _ := s.Tensor("x")
		p := unsafe.SliceData(x.Data)
		if string(x.Data) != "ABCDEFGH" || uintptr(unsafe.Pointer(p))%4 != 0 {
			t.Errorf("shifted by %d: %q at %p", shift, x.Data, p)
		}
		if inPlace := p == &at[len(at)-8]; inPlace != (shift == 0) {
			t.Errorf("shifted by %d: in place is %v", shift, inPlace)
		}
	}
}

func FuzzIndex(f *testing.F) {
	f.Add(index("a", first, "b", second))
	f.Add([]byte(`{"weight_map":{"a":"../../x.safetensors"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parseIndex(data)
		if err != nil {
			return
		}
		for _, s := range p.shards {
			if !filepath.IsLocal(s) || filepath.Dir(s) != "." || strings.Contains(s, `\`) {
				t.Errorf("accepted the shard name %q", s)
			}
		}
	})
}

func BenchmarkOpenDefault(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		s, err := Open("../../models/krater-tiny")
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
