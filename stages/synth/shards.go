//go:build unix

package synth

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"krater/stages/model"
)

// writer fills a folder.
type writer struct {
	Folder
	m         *Model
	done, all int64
	buf       []byte
	names     []string // of the files begun
}

// partSuffix is the suffix of the name of an unfinished file.
const partSuffix = ".part"

// bufBytes is the number of bytes that are made at once and then written.
const bufBytes = 8 << 20

// bytes is n bytes of the buffer.
func (w *writer) bytes(n int) []byte {
	if len(w.buf) < n {
		w.buf = make([]byte, n)
	}
	return w.buf[:n]
}

// append writes bytes of the weights and tells the progress.
func (w *writer) append(f *os.File, b []byte) error {
	_, err := f.Write(b)
	w.done += int64(len(b))
	w.progress(w.done)
	return err
}

func (w *writer) progress(done int64) {
	if w.Progress != nil {
		w.Progress(done, w.all)
	}
}

// put writes a file under another name, makes it durable and gives it its name.
func (w *writer) put(name string, fill func(*os.File) error) error {
	create := w.create
	if create == nil {
		create = os.Create
	}
	path := filepath.Join(w.Dir, name)
	part := path + partSuffix
	w.names = append(w.names, name)
	f, err := create(part)
	if err != nil {
		return err
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// file writes a small file.
func (w *writer) file(name string, data []byte) error {
	return w.put(name, func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
}

// tensors writes tensors as bfloat16 in shards, then the index.
func (w *writer) tensors(ctx context.Context, list []model.TensorSpec) error {
	if err := w.room(); err != nil {
		return err
	}
	shards := w.deal(list)
	shardOf := make(map[string]string, len(list))
	for i, part := range shards {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
		for _, t := range part {
			shardOf[t.Name] = name
		}
		if err := w.put(name, func(f *os.File) error { return w.shardFile(ctx, f, part) }); err != nil {
			return err
		}
	}
	return w.writeIndex(shardOf, tensorBytes(list))
}

// deal cuts the list into shards.
func (w *writer) deal(list []model.TensorSpec) [][]model.TensorSpec {
	most := w.shard
	if most == 0 {
		most = shardBytes
	}
	var shards [][]model.TensorSpec
	size := int64(0)
	for i, t := range list {
		n := sizeOf(t)
		if i == 0 || size+n > most {
			shards, size = append(shards, nil), 0
		}
		last := len(shards) - 1
		shards[last] = append(shards[last], t)
		size += n
	}
	return shards
}

// shardFile writes the header (u64 length, JSON filled up to 8 bytes), then the
// tensors in its order.
func (w *writer) shardFile(ctx context.Context, f *os.File, list []model.TensorSpec) error {
	type entry struct {
		DType   string   `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	head := map[string]any{"__metadata__": map[string]string{"format": "pt"}}
	at := int64(0)
	for _, t := range list {
		n := sizeOf(t)
		head[t.Name] = entry{"BF16", t.Shape, [2]int64{at, at + n}}
		at += n
	}
	text, err := json.Marshal(head)
	if err != nil {
		return err
	}
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	if _, err := f.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)); err != nil {
		return err
	}
	for _, t := range list {
		if err := w.tensor(ctx, f, t); err != nil {
			return fmt.Errorf("%s: %w", t.Name, err)
		}
	}
	return nil
}

// tensor writes one tensor, some rows at a time.
func (w *writer) tensor(ctx context.Context, f *os.File, t model.TensorSpec) error {
	r := w.m.floats(t)
	step := max(4, bufBytes/(2*r.cols)&^3)
	for from := 0; from < r.rows; from += step {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		to := min(from+step, r.rows)
		n := 2 * (to - from) * r.cols
		b := w.bytes(n)
		r.fill(b, from, to, w.Threads)
		if err := w.append(f, b); err != nil {
			return err
		}
	}
	return nil
}
