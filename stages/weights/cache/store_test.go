package cache_test

import (
	"krater/stages/load"
	"krater/stages/weights/cache"
)

var _ load.Store = (*cache.Matrices)(nil)
