package template

import (
	"maps"
)

// valuesOf returns the members of a dict as variables.
func valuesOf(d *Dict) map[string]Value {
	return maps.Clone(d.Data)
}
