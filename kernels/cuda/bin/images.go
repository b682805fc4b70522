//go:build cuda

package bin

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"strings"
)

//go:embed *.gz MANIFEST RESOURCES
var files embed.FS

// machineCode begins an image that is not text: also one of the text form, where ../bundle/assembled.sh has assembled it.
const machineCode = "\x7fELF"

// imageMax bounds the unpacked size of one artifact.
const imageMax = 256 << 20

// Images returns the kernels for a compute capability (90 for 9.0), one image per source file:
// machine code if there is any, else the text form. An image is a string as cuModuleLoadData
// takes it.
func Images(capability int) ([]string, error) {
	arch := PTX
	if capability == hopper {
		arch = Hopper
	}
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var images []string
	for _, e := range entries {
		source, _, _ := strings.Cut(e.Name(), ".")
		if e.Name() != ArtifactName(source, arch) {
			continue
		}
		image, err := unpack(e.Name())
		if err != nil {
			return nil, fmt.Errorf("kernels of %s: %w", e.Name(), err)
		}
		if arch == PTX && !strings.HasPrefix(image, machineCode) && !strings.Contains(image, ".entry ") {
			continue // all of the file's kernels are for Hopper
		}
		images = append(images, image)
	}
	return images, nil
}

// Built returns the manifest and the resources of the kernels in this program.
func Built() (*Manifest, []Resources, error) {
	text, err := files.ReadFile("MANIFEST")
	if err != nil {
		return nil, nil, err
	}
	table, err := files.ReadFile("RESOURCES")
	if err != nil {
		return nil, nil, err
	}
	m, err := ParseManifest(text)
	if err != nil {
		return nil, nil, err
	}
	rows, err := ParseResources(table)
	return m, rows, err
}

// unpack ends the image with a zero byte, which the text form needs.
func unpack(name string) (string, error) {
	packed, err := files.ReadFile(name)
	if err != nil {
		return "", err
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if _, err := io.Copy(&b, io.LimitReader(r, imageMax)); err != nil {
		return "", err
	}
	b.WriteByte(0)
	return b.String(), nil
}
