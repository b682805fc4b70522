package batches

import (
	"krater/transport/api"
	"krater/transport/openapi"
)

// Routes describes the door's routes for /openapi.json.
func Routes() []openapi.Route {
	page := []string{"after", "limit", "order"}
	return []openapi.Route{
		{Method: "POST", Path: "/v1/files", Summary: "uploads a file, as a form", Answer: api.File{}},
		{Method: "GET", Path: "/v1/files", Summary: "the files", Answer: api.List[api.File]{}, Query: page},
		{Method: "GET", Path: "/v1/files/{id}", Summary: "a file", Answer: api.File{}},
		{Method: "GET", Path: "/v1/files/{id}/content", Summary: "the content of a file"},
		{Method: "DELETE", Path: "/v1/files/{id}", Summary: "deletes a file", Answer: api.Deleted{}},
		{Method: "POST", Path: "/v1/batches", Summary: "makes a batch of a file of requests", Request: api.BatchRequest{}, Answer: api.Batch{}},
		{Method: "GET", Path: "/v1/batches", Summary: "the batches", Answer: api.List[api.Batch]{}, Query: page},
		{Method: "GET", Path: "/v1/batches/{id}", Summary: "a batch", Answer: api.Batch{}},
		{Method: "POST", Path: "/v1/batches/{id}/cancel", Summary: "cancels a batch", Answer: api.Batch{}},
	}
}
