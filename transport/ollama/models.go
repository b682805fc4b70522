package ollama

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json/jsontext"
	"time"

	"krater/actors/engine"
)

// Version is the version of Ollama whose API this is: editors refuse older servers
// than they need.
const Version = "0.12.6"

// VersionAnswer is the answer of GET /api/version.
type VersionAnswer struct {
	Version string `json:"version"`
}

// Error is an error in the form of this API.
type Error struct {
	Error string `json:"error"`
}

// Model is one entry of GET /api/tags and /api/ps.
type Model struct {
	Name       string  `json:"name"`
	Model      string  `json:"model"`
	ModifiedAt string  `json:"modified_at,omitempty"`
	Size       int64   `json:"size"` // 0: not told
	Digest     string  `json:"digest"`
	Details    Details `json:"details"`
	// Of /api/ps.
	ExpiresAt     string `json:"expires_at,omitempty"`
	SizeVRAM      *int64 `json:"size_vram,omitzero"`
	ContextLength int    `json:"context_length,omitempty"`
}

// Details are fields that Ollama fills from a GGUF file.
type Details struct {
	ParentModel       string   `json:"parent_model"`
	Format            string   `json:"format"`
	Family            string   `json:"family"`
	Families          []string `json:"families"`
	ParameterSize     string   `json:"parameter_size"`
	QuantizationLevel string   `json:"quantization_level"`
}

// Models is the answer of GET /api/tags and /api/ps.
type Models struct {
	Models []Model `json:"models"`
}

// family stands for the model's family, which clients only show.
const family = "krater"

func details() Details {
	return Details{Format: "krater", Family: family, Families: []string{family}}
}

// Tags lists the served model, if it is loaded.
func Tags(info engine.Info) Models {
	if info.ID == "" {
		return Models{Models: []Model{}}
	}
	digest := sha256.Sum256([]byte(info.ID))
	return Models{Models: []Model{{
		Name: info.ID, Model: info.ID, ModifiedAt: info.Created.UTC().Format(time.RFC3339), Digest: hex.EncodeToString(digest[:]), Details: details(),
	}}}
}

// Running lists the served model as one that never leaves memory.
func Running(info engine.Info) Models {
	list := Tags(info)
	for i := range list.Models {
		m := &list.Models[i]
		m.ModifiedAt, m.ExpiresAt, m.SizeVRAM, m.ContextLength = "", "2318-01-01T00:00:00Z", new(int64), info.Context
	}
	return list
}

// ShowRequest is the body of POST /api/show.
type ShowRequest struct {
	Model   *string        `json:"model"`
	Name    *string        `json:"name"` // an older name of model
	Verbose *bool          `json:"verbose"`
	System  *string        `json:"system"`
	Options jsontext.Value `json:"options"`
}

// Show is the answer of POST /api/show.
type Show struct {
	ModifiedAt   string         `json:"modified_at"`
	Modelfile    string         `json:"modelfile"`
	Parameters   string         `json:"parameters"`
	Template     string         `json:"template"`
	Details      Details        `json:"details"`
	ModelInfo    map[string]any `json:"model_info"`
	Capabilities []string       `json:"capabilities"`
}

// NewShow describes the served model.
func NewShow(info engine.Info) Show {
	return Show{
		ModifiedAt: info.Created.UTC().Format(time.RFC3339), Details: details(),
		ModelInfo:    map[string]any{"general.architecture": family, "general.basename": info.ID, family + ".context_length": info.Context, family + ".vocab_size": info.Vocab},
		Capabilities: capabilities(info),
	}
}

// capabilities are Ollama's words for what the model does.
func capabilities(info engine.Info) []string {
	list := []string{"completion", "tools"}
	if info.Infill {
		list = append(list, "insert")
	}
	if info.Reasons {
		list = append(list, "thinking")
	}
	return list
}
