package amx

import (
	"os"
	"testing"
)

// The bytes of a configuration are laid down by the processor: palette, start row, 14 bytes of
// nothing, 16-bit row lengths, then rows.
func TestConfig(t *testing.T) {
	c := NewConfig()
	c.Set(0, 12, 64)
	c.Set(7, 16, 4)
	want := Config{0: 1, 16: 64, 48: 12, 30: 4, 55: 16}
	if c != want {
		t.Errorf("configuration %v, want %v", c, want)
	}
}

// CI reports whether its machine has the unit: a probe that failed silently would make every test
// of it pass by skipping.
func TestExpectedUnit(t *testing.T) {
	if os.Getenv("KRATER_EXPECT_AMX") == "" {
		t.Skip("KRATER_EXPECT_AMX is not set")
	}
	if err := Int8(); err != nil {
		t.Error(err)
	}
	if err := BF16(); err != nil {
		t.Error(err)
	}
}
