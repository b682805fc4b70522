package rates

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Version of the file format.
const Version = 1

// FileMost bounds a file: a full one has 2 KB.
const FileMost = 64 << 10

// File is the contents of a file of rates. Card or CPU may be missing.
type File struct {
	Version int `json:"krater_rates"`
	// Machine is the identity of the measured machine, "" in a description written by hand.
	Machine string `json:"machine,omitempty"`
	Card    *Card  `json:"card,omitempty"`
	CPU     *CPU   `json:"cpu,omitempty"`
}

// ErrFile: not a file of rates that this program can read.
var ErrFile = errors.New("not a description of rates")

// Parse reads a file. Whatever it holds, the result can be computed with; what it
// does not know it refuses.
func Parse(data []byte) (*File, error) {
	if len(data) > FileMost {
		return nil, fmt.Errorf("%w: %d bytes, want at most %d", ErrFile, len(data), FileMost)
	}
	var version struct {
		Version int `json:"krater_rates"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	if version.Version != Version { // before unknown fields of a later one are complained of
		return nil, fmt.Errorf("%w: krater_rates: version %d, want %d", ErrFile, version.Version, Version)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var f File
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: something follows", ErrFile)
	}
	return &f, f.check()
}

func (f *File) check() error {
	if err := checkName("machine", f.Machine); err != nil {
		return fmt.Errorf("%w: %w", ErrFile, err)
	}
	var r Rates
	if f.Card != nil {
		r.Card = *f.Card
	}
	if f.CPU != nil {
		r.CPU = *f.CPU
	}
	if err := r.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrFile, err)
	}
	return nil
}

// Bytes writes a file; the same rates give the same bytes.
func (f File) Bytes() ([]byte, error) {
	f.Version = Version
	if err := f.check(); err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(f, "", "  ")
	return append(data, '\n'), err
}
