//go:build !nomodel

package models

import (
	"embed"
	"io/fs"
)

//go:embed krater-tiny/config.json krater-tiny/generation_config.json
//go:embed krater-tiny/tokenizer.json krater-tiny/tokenizer_config.json krater-tiny/heldout.txt
var folder embed.FS

// The weights are separate variables: reading them through an embed.FS would copy 33 MB.
var (
	//go:embed krater-tiny/model.safetensors.index.json
	index []byte
	//go:embed krater-tiny/model-00001-of-00003.safetensors
	shard1 []byte
	//go:embed krater-tiny/model-00002-of-00003.safetensors
	shard2 []byte
	//go:embed krater-tiny/model-00003-of-00003.safetensors
	shard3 []byte
	//go:embed krater-tiny/NOTICE
	notice string
)

// ahead makes the linker place the shards at multiples of 8, where they can be used in place.
// Embedded files have no alignment. The linker sorts the data of a program by size, so this
// variable, which is aligned, comes right before the shards, whose sizes are multiples of 8 as
// well. It has a value because zeros would be placed elsewhere. If that order ever changes, the
// reader of the weights copies them, and TestAligned reports it.
var ahead = [1 << 17]uint64{1}

// Default returns the default model, or ErrNoModel.
func Default() (Files, error) {
	sub, err := fs.Sub(folder, Name)
	if err != nil {
		return Files{}, err
	}
	return Files{FS: sub, ahead: &ahead[0], weights: map[string][]byte{
		"model.safetensors.index.json":     index,
		"model-00001-of-00003.safetensors": shard1,
		"model-00002-of-00003.safetensors": shard2,
		"model-00003-of-00003.safetensors": shard3,
	}}, nil
}

// Notice returns the licence text that has to travel with the default model; "" when there is none.
func Notice() string { return notice }
