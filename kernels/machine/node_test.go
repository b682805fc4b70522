package machine

import (
	"testing"
	"testing/fstest"
)

// TestNodeRoom: the room of one node among several is its free memory and the memory that files hold.
func TestNodeRoom(t *testing.T) {
	two := files{
		"sys/devices/system/node/online": "0-1\n",
		"sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:  900 kB\nNode 1 MemFree:  100 kB\nNode 1 Active:  50 kB\n" +
			"Node 1 Active(anon):  40 kB\nNode 1 Active(file):  20 kB\nNode 1 Inactive(file):  3 kB\n",
	}
	lone := files{"sys/devices/system/node/online": "1\n", "sys/devices/system/node/node1/meminfo": two["sys/devices/system/node/node1/meminfo"]}
	for _, x := range []struct {
		name string
		f    files
		id   int
		want int64
	}{{"one of two", two, 1, 123 << 10}, {"not there", two, 0, 0}, {"a lone node", lone, 1, 0}, {"nothing", files{}, 0, 0}} {
		fs := fstest.MapFS{}
		for path, text := range x.f {
			fs[path] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := (tree{fs}).nodeRoom(x.id); got != x.want {
			t.Errorf("%s: %d bytes, want %d", x.name, got, x.want)
		}
	}
}
