package cpu

func prefetchAhead() int { return 8192 }
