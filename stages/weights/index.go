package weights

import (
	json "encoding/json/v2"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"krater/scheduler/files"
)

// The names of the Hugging Face format.
const (
	singleFile = "model.safetensors"
	indexFile  = "model.safetensors.index.json"
)

// maxIndex bounds the index; a million tensors take about this.
const maxIndex = 100 << 20

// plan says which files to read and what they must hold.
type plan struct {
	shards []string // in order of name
	// shardOf is the index: tensor -> shard; nil for a single file, which is its
	// own list.
	shardOf map[string]string
}

// numbered matches "model-00001-of-00003.safetensors".
var numbered = regexp.MustCompile(`^(.+)-\d{3,}-of-\d{3,}\.safetensors$`)

// planOf looks for an index or a single file. Other .safetensors files may lie
// beside (adapters, test vectors): only what looks like a part of this model and
// is not named is an error.
func planOf(dir folder) (*plan, error) {
	names, err := dir.names()
	if err != nil {
		return nil, err
	}
	// By the list of names: a link that leads nowhere is in it, and is an error when it is opened.
	if !slices.Contains(names, indexFile) {
		if !slices.Contains(names, singleFile) {
			if slices.ContainsFunc(names, numbered.MatchString) {
				return nil, fmt.Errorf("%w: there are shards, and %s is missing", ErrIndex, indexFile)
			}
			return nil, fmt.Errorf("%w: neither %s nor %s", ErrNoWeights, singleFile, indexFile)
		}
		p := &plan{shards: []string{singleFile}}
		return p, p.checkStrays(names)
	}
	data, unmap, err := dir.open(indexFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", indexFile, err)
	}
	if unmap != nil {
		defer unmap()
	}
	p, err := parseIndex(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", indexFile, err)
	}
	var absent []string
	for _, shard := range p.shards {
		if !dir.has(shard) {
			for _, name := range names {
				if rest, ok := strings.CutPrefix(name, shard); ok && rest != "" && rest != ".lock" {
					shard += " (" + name + " is there: its download has not ended)"
					break
				}
			}
			absent = append(absent, shard)
		}
	}
	if absent != nil {
		return nil, fmt.Errorf("%w: %s names %s", ErrShardMissing, indexFile, strings.Join(absent, ", "))
	}
	return p, p.checkStrays(names)
}

// parseIndex reads {"metadata": {..}, "weight_map": {tensor: shard}}.
func parseIndex(data []byte) (*plan, error) {
	if len(data) > maxIndex {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrIndex, len(data), maxIndex)
	}
	if err := files.CheckPointer(indexFile, data); err != nil {
		return nil, err
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIndex, err)
	}
	if len(index.WeightMap) == 0 {
		return nil, fmt.Errorf("%w: weight_map is missing or empty", ErrIndex)
	}
	p := &plan{shardOf: index.WeightMap}
	seen := make(map[string]bool)
	for _, shard := range index.WeightMap {
		if !seen[shard] {
			seen[shard] = true
			p.shards = append(p.shards, shard)
		}
	}
	slices.Sort(p.shards)
	for _, shard := range p.shards {
		// A plain name only: an index must not reach out of its folder.
		if shard != filepath.Base(shard) || strings.ContainsAny(shard, "/\\\x00") || !strings.HasSuffix(shard, ".safetensors") {
			return nil, fmt.Errorf("%w: %.100q", ErrShardName, shard)
		}
	}
	return p, nil
}

// checkStrays looks for files that belong to the model by their name (another
// number of a shard's series, or the single file beside shards) but not by the
// plan: a mixture of two downloads.
func (p *plan) checkStrays(names []string) error {
	series := map[string]bool{"model": true}
	for _, shard := range p.shards {
		if m := numbered.FindStringSubmatch(shard); m != nil {
			series[m[1]] = true
		}
	}
	var strays []string
	for _, name := range names {
		m := numbered.FindStringSubmatch(name)
		if (name == singleFile || m != nil && series[m[1]]) && !slices.Contains(p.shards, name) {
			strays = append(strays, name)
		}
	}
	if strays == nil {
		return nil
	}
	slices.Sort(strays)
	return fmt.Errorf("%w: %s", ErrShardStray, strings.Join(strays, ", "))
}
