package api

import (
	"crypto/rand"
	"encoding/hex"

	"krater/actors/engine"
)

// NewID makes an unguessable id: the prefix (chatcmpl-, cmpl-, resp_, ...) and 128 random bits in
// hex.
func NewID(prefix string) string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return prefix + hex.EncodeToString(b[:])
}

// CheckModel returns a 404 unless model is absent or names the served model.
func CheckModel(model *string, info engine.Info) *Error {
	if model == nil || *model == info.ID {
		return nil
	}
	return &Error{
		Status: 404, Type: TypeNotFound, Code: CodeModelNotFound, Param: "model",
		Message: "the model '" + Clip(*model) + "' does not exist; this server serves '" + info.ID + "'",
	}
}
