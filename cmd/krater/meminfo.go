package main

import (
	"bytes"
	"strconv"
)

// meminfo finds a line such as "MemAvailable:  123 kB" in /proc/meminfo (or
// "VmRSS:" in /proc/self/status) and gives it in bytes; 0 if it is not there.
func meminfo(data []byte, name string) int64 {
	for line := range bytes.Lines(data) {
		value, ok := bytes.CutPrefix(line, []byte(name+":"))
		if !ok {
			continue
		}
		fields := bytes.Fields(value)
		if len(fields) != 2 || string(fields[1]) != "kB" {
			return 0
		}
		kb, err := strconv.ParseInt(string(fields[0]), 10, 64)
		if err != nil {
			return 0
		}
		return kb * 1024
	}
	return 0
}
