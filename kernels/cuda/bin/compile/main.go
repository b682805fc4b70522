// Command compile makes the artifacts of kernels/cuda/bin from the sources in kernels/cuda/src if
// their sources, flags or compiler have changed. It runs in the repository's root; its argument
// is nvcc.
package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"krater/kernels/cuda/bin"
)

const (
	src = "kernels/cuda/src"
	out = "kernels/cuda/bin"
)

var flags = map[string]string{
	bin.PTX:    "-O3 -ptx -arch=compute_80",
	bin.Hopper: "-O3 -cubin -gencode=arch=compute_90a,code=sm_90a -Xptxas -v",
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: compile NVCC")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "compile:", err)
		os.Exit(1)
	}
}

func run(nvcc string) error {
	ptxas = filepath.Join(filepath.Dir(nvcc), "ptxas")
	old, oldRows := load()
	version, err := compiler(nvcc)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(src, "*.cu"))
	if err != nil {
		return err
	}
	b := &build{nvcc: nvcc, manifest: &bin.Manifest{Compiler: version, Flags: flags,
		Sources: map[string]string{}, Artifact: map[string]bin.Artifact{}}}
	var wait sync.WaitGroup
	slots := make(chan struct{}, runtime.NumCPU())
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".cu")
		if err := b.sources(name); err != nil {
			return err
		}
		if b.fresh(name, old) {
			if !b.keep(name, old, oldRows) {
				slots <- struct{}{}
				wait.Go(func() {
					b.again(name)
					<-slots
				})
			}
			continue
		}
		for arch := range flags {
			slots <- struct{}{}
			wait.Go(func() {
				b.done(b.compile(name, arch))
				<-slots
			})
		}
	}
	wait.Wait()
	return errors.Join(b.err, b.write()) // keep the files that compiled
}

// load reads the last run's manifest and table; without them everything is new.
func load() (*bin.Manifest, []bin.Resources) {
	text, err := os.ReadFile(filepath.Join(out, "MANIFEST"))
	if err != nil {
		return &bin.Manifest{}, nil
	}
	table, err := os.ReadFile(filepath.Join(out, "RESOURCES"))
	if err != nil {
		return &bin.Manifest{}, nil
	}
	m, err := bin.ParseManifest(text)
	rows, err2 := bin.ParseResources(table)
	if err != nil || err2 != nil {
		return &bin.Manifest{}, nil
	}
	return m, rows
}

func compiler(nvcc string) (string, error) {
	text, err := exec.Command(nvcc, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", nvcc, err)
	}
	_, after, ok := strings.Cut(string(text), ", V")
	if !ok {
		return "", fmt.Errorf("%s --version: %q", nvcc, text)
	}
	return strings.Fields(after)[0], nil
}

// build makes the new manifest.
type build struct {
	nvcc     string
	mu       sync.Mutex
	manifest *bin.Manifest
	rows     []bin.Resources
	err      error
}

// sources records the sources of a file.
func (b *build) sources(name string) error {
	list, err := bin.Includes(src, name+".cu")
	if err != nil {
		return err
	}
	for _, s := range list {
		text, err := os.ReadFile(filepath.Join(src, s))
		if err != nil {
			return err
		}
		b.manifest.Sources[s] = bin.SourceSum(text)
	}
	for arch := range flags {
		b.manifest.Artifact[bin.ArtifactName(name, arch)] = bin.Artifact{Sources: list}
	}
	return nil
}

// fresh reports whether the artifacts of the last run are up to date.
func (b *build) fresh(name string, old *bin.Manifest) bool {
	if h := b.manifest.SourceHash(name); h == "" || h != old.SourceHash(name) {
		return false
	}
	for arch := range flags {
		file := bin.ArtifactName(name, arch)
		content, err := os.ReadFile(filepath.Join(out, file))
		if err != nil || bin.Sum(content) != old.Artifact[file].Sum {
			return false
		}
	}
	return true
}

// keep reuses the last run's results for a file. It returns false if these lack an architecture
// that the text form is assembled for.
func (b *build) keep(name string, old *bin.Manifest, rows []bin.Resources) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for arch := range flags {
		file := bin.ArtifactName(name, arch)
		b.manifest.Artifact[file] = old.Artifact[file]
	}
	kernels := map[string]int{}
	for _, r := range rows {
		if r.Source == name {
			kernels[r.Arch]++
		}
	}
	whole := true
	for _, arch := range bin.Assembled {
		whole = whole && kernels[arch] == kernels[bin.PTX]
	}
	for _, r := range rows {
		if r.Source == name && (whole || r.Arch == bin.Hopper) {
			b.rows = append(b.rows, r)
		}
	}
	return whole
}

// again assembles the text form of the last run.
func (b *build) again(name string) {
	file := bin.ArtifactName(name, bin.PTX)
	rows, err := assembleFile(filepath.Join(out, file), name)
	b.done(file, b.manifest.Artifact[file].Sum, rows, err)
}

func assembleFile(packed, name string) ([]bin.Resources, error) {
	f, err := os.Open(packed)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp("", "kernels")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	image := filepath.Join(tmp, name+".ptx")
	text, err := io.ReadAll(r)
	if err == nil {
		err = os.WriteFile(image, text, 0o644)
	}
	if err != nil {
		return nil, err
	}
	return assemble(image, name)
}

// ptxas returns the command of the assembler.
var ptxas string

// assemble assembles the text form for every architecture that runs it, and returns the
// assembler's messages.
func assemble(image, name string) (rows []bin.Resources, err error) {
	for _, arch := range append([]string{bin.PTX}, bin.Assembled...) {
		target := strings.Replace(arch, "compute", "sm", 1)
		said, err := exec.Command(ptxas, "-v", "-arch="+target, image, "-o", image+"."+target).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%s, assembled for %s: %w\n%s", name, target, err, said)
		}
		list, err := parse(string(said), name, arch)
		if err != nil {
			return nil, fmt.Errorf("%s for %s: %w", name, target, err)
		}
		rows = append(rows, list...)
	}
	return rows, nil
}

// compile makes one artifact.
func (b *build) compile(name, arch string) (file, sum string, rows []bin.Resources, err error) {
	file = bin.ArtifactName(name, arch)
	tmp, err := os.MkdirTemp("", "kernels")
	if err != nil {
		return file, "", nil, err
	}
	defer os.RemoveAll(tmp)
	image := filepath.Join(tmp, name+"."+arch)
	args := append(strings.Fields(flags[arch]), "-I", src, filepath.Join(src, name+".cu"), "-o", image)
	said, err := exec.Command(b.nvcc, args...).CombinedOutput()
	if err != nil {
		return file, "", nil, fmt.Errorf("%s for %s: %w\n%s", name, arch, err, said)
	}
	if arch == bin.PTX {
		rows, err = assemble(image, name)
	} else if rows, err = parse(string(said), name, arch); err != nil {
		err = fmt.Errorf("%s for %s: %w", name, arch, err)
	}
	if err != nil {
		return file, "", nil, err
	}
	content, err := os.ReadFile(image)
	if err != nil {
		return file, "", nil, err
	}
	packed, err := pack(content)
	if err != nil {
		return file, "", nil, err
	}
	fmt.Printf("%-24s %8d bytes, %8d packed, %3d kernels\n", file, len(content), len(packed), len(rows))
	return file, bin.Sum(packed), rows, os.WriteFile(filepath.Join(out, file), packed, 0o644)
}

// pack compresses without a name or a time, so equal content gives equal bytes.
func pack(content []byte) ([]byte, error) {
	var buf bytes.Buffer
	w, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	_, err = w.Write(content)
	err = errors.Join(err, w.Close())
	return buf.Bytes(), err
}

func (b *build) done(file, sum string, rows []bin.Resources, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.err = errors.Join(b.err, err)
		delete(b.manifest.Artifact, file)
		return
	}
	a := b.manifest.Artifact[file]
	a.Sum = sum
	b.manifest.Artifact[file] = a
	b.rows = append(b.rows, rows...)
}

// write writes manifest and table, and removes the artifacts of sources that no longer exist.
func (b *build) write() error {
	packed, err := filepath.Glob(filepath.Join(out, "*.gz"))
	if err != nil {
		return err
	}
	for _, f := range packed {
		if _, ok := b.manifest.Artifact[filepath.Base(f)]; !ok {
			if err := os.Remove(f); err != nil {
				return err
			}
		}
	}
	if err := os.WriteFile(filepath.Join(out, "RESOURCES"), []byte(bin.FormatResources(b.rows)), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "MANIFEST"), []byte(b.manifest.String()), 0o644)
}
