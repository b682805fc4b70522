package template

import (
	"maps"

	"github.com/ardanlabs/jinja"
)

// valuesOf are the members of a dict as variables.
func valuesOf(d *jinja.Dict) map[string]jinja.Value {
	vars := maps.Clone(d.Data)
	delete(vars, flagClient)
	return vars
}
