package api

import "krater/actors/engine"

// Model is one entry of GET /v1/models.
type Model struct {
	ID          string `json:"id"`
	Object      string `json:"object"` // model
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	MaxModelLen int    `json:"max_model_len"`
}

// ModelList is the answer of GET /v1/models.
type ModelList struct {
	Object string  `json:"object"` // list
	Data   []Model `json:"data"`
}

// NewModel describes the served model.
func NewModel(info engine.Info) Model {
	return Model{
		ID: info.ID, Object: "model", Created: info.Created.Unix(), OwnedBy: "krater", MaxModelLen: info.Context,
	}
}

// Version is the answer of GET /version.
type Version struct {
	Version string `json:"version"`
}

// Status is the answer of GET /health and of GET /ready when it is 200.
type Status struct {
	Status string `json:"status"`
}
