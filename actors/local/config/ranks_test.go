package config

import (
	"fmt"
	"strings"
	"testing"
)

// TestPlaces: a list names a device for each rank, and a number of ranks repeats one kind.
func TestPlaces(t *testing.T) {
	for _, x := range []struct{ args, want, err string }{
		{"", "[cpu]", ""},
		{"--device cuda", "[cuda:0]", ""},
		{"--device cuda --gpu 2", "[cuda:2]", ""},
		{"--device cuda --ranks 3", "[cuda:0 cuda:1 cuda:2]", ""},
		{"--device cuda,cpu,cuda --gpu 1", "[cuda:1 cpu cuda:2]", ""},
		{"--device cuda:3,cuda:1", "[cuda:3 cuda:1]", ""},
		{"--device hostsim --pp-partition 1,2", "[hostsim hostsim]", ""},
		{"--device cuda:0,cuda:0 --vram 3GiB,2GiB", "[cuda:0 cuda:0]", ""},
		{"--device cuda:0,cuda:0", "", "rank 0 and rank 1 share cuda:0; say with --vram"},
		{"--device cuda:0,cuda:0 --vram 3GiB,0", "", "rank 0 and rank 1 share cuda:0"},
		{"--device cpu,cpu --ranks 3", "", "--ranks 3: --device names 2 devices"},
		{"--device cpu,cpu --pp-partition 1,1,1", "", "--pp-partition 1,1,1: --device names 2 devices"},
		{"--device hostsim --vram 1GiB,2GiB", "", "--vram 1GiB,2GiB: 2 sizes for 1 ranks"},
		{"--device hostsim,hostsim --vram 1GiB,2GiB,3GiB", "", "3 sizes for 2 ranks"},
	} {
		o := parsed(t, strings.Fields(x.args)...)
		list, err := o.Places()
		if x.err != "" {
			if err == nil || !strings.Contains(err.Error(), x.err) {
				t.Errorf("%s: %v, want %q", x.args, err, x.err)
			}
			continue
		}
		if got := fmt.Sprint(list); err != nil || got != x.want || o.RankCount() != len(list) {
			t.Errorf("%s: %s, %v, want %s", x.args, got, err, x.want)
		}
	}
}

// TestOptionsOfRank: a rank has its device and its memory, and one on the CPU no options of a GPU.
func TestOptionsOfRank(t *testing.T) {
	o := parsed(t, strings.Fields("--device cuda:1,cpu --vram 3GiB,0 --decode-strategy lru --expert-vram 1GiB --portable-kernels")...)
	list, err := o.Places()
	if err != nil {
		t.Fatal(err)
	}
	if gpu := o.Of(0, list[0]); gpu.Device != CUDA || gpu.GPUIndex != 1 || gpu.VRAM.One() != 3<<30 || gpu.RankCount() != 2 || gpu.DecodeStrategy != "lru" || gpu.Check() != nil {
		t.Errorf("%+v, %v", gpu, gpu.Check())
	}
	if cpu := o.Of(1, list[1]); cpu.Device != CPU || cpu.VRAM.One() != 0 || cpu.ExpertVRAM != 0 || cpu.Portable || cpu.Check() != nil {
		t.Errorf("%+v, %v", cpu, cpu.Check())
	}
}

// TestHelperOptions: a helper is another device of the rank's kind, and what does not go with it is refused by name.
func TestHelperOptions(t *testing.T) {
	for _, c := range []struct {
		device Kind
		helper string
		change func(*Options)
		want   string // the helper, or a part of the error
	}{
		{"cuda", "cuda:1", nil, "cuda:1"},
		{"cuda:2", "cuda", nil, "cuda:3"},
		{"cpu", "hostsim", nil, "hostsim"},
		{"hostsim", "hostsim", func(o *Options) { o.VRAM = Each(1<<30, 2<<30) }, "hostsim"},
		{"cuda", "cuda:0", nil, "that is the GPU of the rank"},
		{"cuda", "hostsim", nil, "a rank on cuda:0 takes another GPU"},
		{"cpu", "cuda:0", nil, "a rank on cpu takes hostsim"},
		{"hostsim", "cpu", nil, "threads of the CPU serve every rank"},
		{"hostsim", "hostsim,hostsim", nil, "want one of cpu, hostsim, cuda"},
		{"hostsim,hostsim", "hostsim", nil, "--expert-device hostsim: it goes with one rank"},
		{"hostsim", "", func(o *Options) { o.ExpertShare = 20 }, "--expert-share goes with --expert-device"},
		{"hostsim", "hostsim", func(o *Options) { o.ExpertShare = 95 }, "--expert-share 95: want 0 to 90"},
		{"cuda", "cuda:1", func(o *Options) { o.BatchInvariant = true }, "--same-tokens takes experts anywhere"},
		{"hostsim", "hostsim", func(o *Options) { o.VRAM = Each(1, 2, 3) }, "3 sizes"},
	} {
		o := Default()
		o.Device, o.ExpertDevice = c.device, c.helper
		if c.change != nil {
			c.change(&o)
		}
		list, err := o.Places()
		got := ""
		if err == nil {
			var p Place
			p, _, err = o.Helper(list[0])
			got = p.String()
		}
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s with %s: %q, want %q", c.device, c.helper, got, c.want)
		}
	}
	o := Default()
	o.Device, o.ExpertDevice, o.ExpertShare, o.VRAM = "cuda:1", "cuda", 20, Each(1<<30, 2<<30)
	for rank, want := range []Options{{DeviceOptions: DeviceOptions{Device: "cuda:2"}, RankOptions: RankOptions{VRAM: Each(2 << 30)}},
		{DeviceOptions: DeviceOptions{Device: "cuda:1"}, RankOptions: RankOptions{VRAM: Each(1 << 30)}}} {
		if f, err := o.Without(rank); err != nil || f.Device != want.Device || f.VRAM != want.VRAM || f.ExpertDevice != "" || f.ExpertShare != 0 {
			t.Errorf("without %d: %s, %s, %q, %v", rank, f.Device, f.VRAM, f.ExpertDevice, err)
		}
	}
}
