package machine

import (
	"slices"
	"strconv"
	"strings"
)

// GPU is an NVIDIA GPU as the PCI bus shows it, without the driver's help.
type GPU struct {
	Address string `json:"address"` // 0000:3b:00.0
	Name    string `json:"name"`    // by the driver; else "10de:2330", vendor and device
	Node    int    `json:"node"`    // NUMA node, -1 if unknown
	Link    Link   `json:"link"`    // current link; an idle GPU may lower its speed
	LinkMax Link   `json:"link_max"`
}

// Link is a PCIe connection, zero where unknown.
type Link struct {
	Width int     `json:"width"` // lanes
	Speed float64 `json:"speed"` // GT/s per lane
}

const (
	pciFolder    = "sys/bus/pci/devices"
	nvidiaFolder = "proc/driver/nvidia"
	nvidia       = "0x10de"
	display      = "0x03" // VGA and 3D controllers
)

// gpus lists the GPUs and the version of the driver.
func (t tree) gpus() (cards []GPU, driver string) {
	for _, address := range t.names(pciFolder) {
		folder := pciFolder + "/" + address
		if t.line(folder+"/vendor") != nvidia || !strings.HasPrefix(t.line(folder+"/class"), display) {
			continue
		}
		node, err := strconv.Atoi(t.line(folder + "/numa_node"))
		if err != nil {
			node = -1
		}
		cards = append(cards, GPU{
			Address: address, Name: "10de:" + strings.TrimPrefix(t.line(folder+"/device"), "0x"), Node: node,
			Link:    parseLink(t.line(folder+"/current_link_width"), t.line(folder+"/current_link_speed")),
			LinkMax: parseLink(t.line(folder+"/max_link_width"), t.line(folder+"/max_link_speed")),
		})
	}
	for _, address := range t.names(nvidiaFolder + "/gpus") {
		name := field(t.text(nvidiaFolder+"/gpus/"+address+"/information"), "Model")
		i := slices.IndexFunc(cards, func(c GPU) bool { return c.Address == address })
		if i < 0 { // a container may hide the bus
			cards = append(cards, GPU{Address: address, Name: "10de", Node: -1})
			i = len(cards) - 1
		}
		if name != "" {
			cards[i].Name = name
		}
	}
	return cards, driverVersion(t.text(nvidiaFolder + "/version"))
}

// driverVersion finds 550.54.14 in "NVRM version: NVIDIA UNIX x86_64 Kernel Module 550.54.14 Thu
// ...".
func driverVersion(text string) string {
	for word := range strings.FieldsSeq(field(text, "NVRM version")) {
		if major, _, ok := strings.Cut(word, "."); ok && len(word) < 32 {
			if _, err := strconv.Atoi(major); err == nil {
				return word
			}
		}
	}
	return ""
}

// parseLink reads "16" and "32.0 GT/s PCIe". A link that is down reports 0 or 63 lanes and
// "Unknown".
func parseLink(width, speed string) Link {
	var l Link
	if n, err := strconv.Atoi(width); err == nil && n > 0 && n <= 32 {
		l.Width = n
	}
	number, _, _ := strings.Cut(speed, " ")
	if v, err := strconv.ParseFloat(number, 64); err == nil && v > 0 && v < 1e4 {
		l.Speed = v
	}
	return l
}
