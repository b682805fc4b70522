package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/shared"
)

// TestBatch goes the whole way: upload, batch, answers.
func TestBatch(t *testing.T) {
	client, ctx, model := newClient(t)
	var lines strings.Builder
	for i := range 3 {
		fmt.Fprintf(&lines, `{"custom_id":"line-%d","method":"POST","url":"/v1/responses","body":{"model":%q,"input":%q,"temperature":0,"max_output_tokens":8}}`+"\n", i, model, question)
	}
	lines.WriteString(`{"custom_id":"wrong","method":"POST","url":"/v1/responses","body":{"input":7}}` + "\n")
	file, err := client.Files.New(ctx, openai.FileNewParams{
		File: openai.File(strings.NewReader(lines.String()), "lines.jsonl", "application/jsonl"), Purpose: openai.FilePurposeBatch,
	})
	if err != nil || file.Bytes != int64(lines.Len()) || file.Filename != "lines.jsonl" || file.Purpose != openai.FileObjectPurposeBatch {
		t.Fatalf("%+v, %v", file, err)
	}
	batch, err := client.Batches.New(ctx, openai.BatchNewParams{
		InputFileID: file.ID, Endpoint: openai.BatchNewParamsEndpointV1Responses,
		CompletionWindow: openai.BatchNewParamsCompletionWindow24h, Metadata: shared.Metadata{"made": "here"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for batch.Status != openai.BatchStatusCompleted {
		switch batch.Status {
		case openai.BatchStatusValidating, openai.BatchStatusInProgress, openai.BatchStatusFinalizing:
		default:
			t.Fatalf("%s", batch.RawJSON())
		}
		time.Sleep(50 * time.Millisecond)
		if batch, err = client.Batches.Get(ctx, batch.ID); err != nil {
			t.Fatal(err)
		}
	}
	if n := batch.RequestCounts; n.Total != 4 || n.Completed != 3 || n.Failed != 1 || batch.Model != model || batch.Metadata["made"] != "here" {
		t.Errorf("%s", batch.RawJSON())
	}
	checkFiles(ctx, t, client, batch)
	pages, found := client.Batches.ListAutoPaging(ctx, openai.BatchListParams{Limit: openai.Int(1)}), false
	for pages.Next() {
		found = found || pages.Current().ID == batch.ID
	}
	if pages.Err() != nil || !found {
		t.Errorf("the list: found %v, %v", found, pages.Err())
	}
	var refused *openai.Error
	if _, err := client.Batches.Cancel(ctx, batch.ID); !errors.As(err, &refused) || refused.StatusCode != 409 {
		t.Errorf("cancelling what has ended: %v", err)
	}
	if gone, err := client.Files.Delete(ctx, file.ID); err != nil || !gone.Deleted {
		t.Errorf("%+v, %v", gone, err)
	}
}

// checkFiles reads the answers, which are in the order of the lines, and the error.
func checkFiles(ctx context.Context, t *testing.T, client openai.Client, batch *openai.Batch) {
	t.Helper()
	res, err := client.Files.Content(ctx, batch.OutputFileID)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	count := 0
	for in := bufio.NewScanner(res.Body); in.Scan(); count++ {
		var o struct {
			CustomID string `json:"custom_id"`
			Response struct {
				StatusCode int `json:"status_code"`
				Body       struct {
					Output []struct {
						Content []struct {
							Text string `json:"text"`
						} `json:"content"`
					} `json:"output"`
				} `json:"body"`
			} `json:"response"`
		}
		if err := json.Unmarshal(in.Bytes(), &o); err != nil || o.CustomID != fmt.Sprintf("line-%d", count) || o.Response.StatusCode != 200 ||
			len(o.Response.Body.Output) == 0 || o.Response.Body.Output[0].Content[0].Text == "" {
			t.Errorf("%v: %s", err, in.Bytes())
		}
	}
	if count != 3 {
		t.Errorf("%d answers", count)
	}
	wrong, err := client.Files.Content(ctx, batch.ErrorFileID)
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Body.Close()
	if text, err := io.ReadAll(wrong.Body); err != nil || !strings.Contains(string(text), `"custom_id":"wrong"`) {
		t.Errorf("%v: %s", err, text)
	}
}
