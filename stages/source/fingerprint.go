package source

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"krater/stages/model"
)

// fingerprintSample is how many bytes of each tensor a Fingerprint covers.
const fingerprintSample = 256

// Fingerprint is a hash that members of a cluster compare: of config.json and the tokenizer, and of every tensor's
// name, type, shape and some bytes from its middle. For random weights config.json says what they are.
func (s *Source) Fingerprint(cfg *model.Config) (string, error) {
	h := sha256.New()
	for _, name := range []string{"config.json", s.tokenizerFile()} {
		text, err := s.Read(name, name != "config.json")
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", name, len(text))
		h.Write(text)
	}
	if s.Synth != nil {
		return hex.EncodeToString(h.Sum(nil)), nil
	}
	set, err := s.Open()
	if err != nil {
		return "", fmt.Errorf("model %s: %w", s.Name, err)
	}
	for _, name := range set.Names() {
		t, _ := set.Tensor(name)
		fmt.Fprintf(h, "%s %s %v\n", name, t.Encoding(), t.Shape)
		for _, stored := range t.Stored() {
			from := max(0, len(stored)-fingerprintSample) / 2
			h.Write(stored[from:min(len(stored), from+fingerprintSample)])
		}
	}
	return hex.EncodeToString(h.Sum(nil)), errors.Join(set.Close())
}
