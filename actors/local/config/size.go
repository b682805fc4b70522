package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes on the command line: 512MiB, 16GB, 1.5G, 4096.
type Size int64

var sizeUnits = []struct {
	name  string
	bytes float64
}{
	{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40},
	{"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12},
	{"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}, {"t", 1 << 40}, {"b", 1},
}

// bareLeast is the smallest number other than 0 that may stand without a unit.
const bareLeast = 64 << 10

// UnmarshalText implements encoding.TextUnmarshaler. It refuses a small number without a unit,
// because a user who writes 16 usually means gigabytes.
func (s *Size) UnmarshalText(text []byte) error {
	number, unit := strings.ToLower(strings.TrimSpace(string(text))), 0.0
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(number, u.name); ok {
			number, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	bare := unit == 0
	if bare {
		unit = 1
	}
	if err != nil || v < 0 || math.IsNaN(v) || v*unit > math.MaxInt64/2 {
		return fmt.Errorf("%q is not a size: write bytes, or a number with KiB, MiB, GiB, KB, MB, GB", text)
	}
	if bare && v > 0 && v < bareLeast {
		meant := "GiB"
		if v >= 1024 {
			meant = "MiB"
		}
		return fmt.Errorf("%s bytes: did you mean %s%s? write %sB for bytes", number, number, meant, number)
	}
	*s = Size(v * unit)
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Sizes is a number of bytes for each rank on the command line, such as 3GiB,2GiB. One number is for every rank.
type Sizes string

// Each returns the sizes of ranks.
func Each(list ...Size) Sizes {
	text := make([]string, len(list))
	for i, s := range list {
		text[i] = s.String()
	}
	return Sizes(strings.Join(text, ","))
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Sizes) UnmarshalText(text []byte) error {
	var list []Size
	for part := range strings.SplitSeq(string(text), ",") {
		var one Size
		if err := one.UnmarshalText([]byte(part)); err != nil {
			return err
		}
		list = append(list, one)
	}
	*s = Each(list...)
	return nil
}

// Count returns the number of sizes; 0: none is given.
func (s Sizes) Count() int {
	if s == "" {
		return 0
	}
	return strings.Count(string(s), ",") + 1
}

// Of returns the size for a rank; 0: none.
func (s Sizes) Of(rank int) (size Size) {
	list := strings.Split(string(s), ",")
	if len(list) == 1 {
		rank = 0
	}
	if s == "" || rank >= len(list) || size.UnmarshalText([]byte(list[rank])) != nil {
		return 0
	}
	return size
}

// One returns the size for the only rank.
func (s Sizes) One() Size { return s.Of(0) }

func (s Size) String() string {
	for _, u := range []struct {
		name  string
		bytes Size
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if s >= u.bytes && s%u.bytes == 0 {
			return fmt.Sprintf("%d%s", s/u.bytes, u.name)
		}
	}
	if s > 0 && s < bareLeast {
		return fmt.Sprintf("%dB", s)
	}
	return strconv.FormatInt(int64(s), 10)
}
