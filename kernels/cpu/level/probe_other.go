//go:build !amd64 || purego

package level

// probe: this build has no assembly.
func probe() Level { return Pure }

func avxvnni() bool { return false }

func vnni() bool { return false }

func vbmi() bool { return false }
