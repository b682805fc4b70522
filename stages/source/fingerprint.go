package source

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"krater/stages/model"
	"krater/stages/weights"
)

// sampleBytes is how many bytes of each stored piece of a tensor a hash covers.
const sampleBytes = 4096

// Fingerprint returns a hash that members of a cluster compare: of config.json, the tokenizer and all tensors, as digest has them.
func (s *Source) Fingerprint() (string, error) {
	config, err := s.Read("config.json", false)
	if err != nil {
		return "", err
	}
	tokenizer, err := s.Read(s.tokenizerFile(), true)
	if err != nil {
		return "", err
	}
	sum, err := s.digest((*weights.Set).Names, []byte("krater cluster"), config, tokenizer)
	return hex.EncodeToString(sum), err
}

// digest returns a hash of texts and of tensors: the name, type, shape and 4 KiB from the middle of each. For random weights
// it is that of the texts, because config.json says what the weights are.
func (s *Source) digest(names func(*weights.Set) []string, texts ...[]byte) (sum []byte, err error) {
	h := sha256.New()
	piece := func(b []byte) {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	for _, text := range texts {
		piece(text)
	}
	if s.Synth != nil {
		return h.Sum(nil), nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("model %s: %w", s.Name, err)
		}
	}()
	set, err := s.Open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	for _, name := range names(set) {
		t, ok := set.Tensor(name)
		if !ok {
			return nil, fmt.Errorf("%w: %s", model.ErrTensorMissing, name)
		}
		piece(fmt.Appendf(nil, "%s %s %v", name, t.Encoding(), t.Shape))
		for _, stored := range t.Stored() {
			from := max(0, len(stored)-sampleBytes) / 2
			piece(stored[from:min(len(stored), from+sampleBytes)])
		}
	}
	return h.Sum(nil), nil
}
