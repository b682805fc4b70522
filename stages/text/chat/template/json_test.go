package template

import (
	"strings"
	"testing"
)

func TestDecode(t *testing.T) {
	for in, want := range map[string]string{
		`{"z":1,"a":[2.50,-0,1E2,null,true,"\u00e9\ud83d\ude00"]}`: `{"z": 1, "a": [2.5, 0, 100.0, null, true, "é😀"]}`,
		` "x" `:                `"x"`,
		`18446744073709551616`: `18446744073709551616`,
		`9007199254740993`:     `9007199254740993`,
		`1e999`:                `Infinity`,
		`0.1`:                  `0.1`,
		`1e16`:                 `1e+16`,
		`123456789.5e-15`:      `1.234567895e-07`,
		`{}`:                   `{}`,
	} {
		v, err := Decode([]byte(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got, err := ToJSON(v); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		``: "no value", ` `: "no value", `{`: "EOF", `[1,]`: "invalid", `1 2`: "data after", `{"a":1,"a":2}`: "duplicate", "\"\xff\"": "UTF-8", `"\ud800"`: "surrogate",
		`nul`: "", `01`: "", `NaN`: "", "'a'": "", strings.Repeat("[", 65) + strings.Repeat("]", 65): "deeper than 64",
		"[" + strings.Repeat("1,", MaxValues) + "1]": "more than",
	} {
		if v, err := Decode([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, %v, want %q", in, v, err, want)
		}
	}
	if _, err := Decode([]byte(strings.Repeat("[", 64) + strings.Repeat("]", 64))); err != nil {
		t.Error(err)
	}
}
