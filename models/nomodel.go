//go:build nomodel

package models

// Default returns the default model, or ErrNoModel.
func Default() (Files, error) { return Files{}, ErrNoModel }

// Notice returns the licence text that has to travel with the default model; "" when there is none.
func Notice() string { return "" }
