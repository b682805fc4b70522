package fetch

import (
	"cmp"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"krater/actors/local/config"
	"krater/actors/local/plan"
	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/kernels/machine"
	"krater/scheduler/files"
	"krater/scheduler/planner"
	spec "krater/stages/model"
	"krater/stages/source"
	"krater/stages/source/hubcache"
	"krater/stages/weights/gguf"
)

// ModelsCmd lists models.
type ModelsCmd struct {
	Folders []string `arg:"" optional:"" help:"Models, .gguf files, or folders that hold some. Hugging Face's cache is always looked through." type:"path"`
	JSON    bool     `name:"json" help:"Print JSON."`
}

// model is a line of the list.
type model struct {
	Name      string `json:"name"` // that --model accepts for a model in the hub's cache
	Path      string `json:"path"`
	Family    string `json:"family,omitempty"`
	Bytes     int64  `json:"bytes"`               // of the files of its weights
	Precision string `json:"precision,omitempty"` // of most of its weights, as the files have them
	Needs     int64  `json:"needs,omitempty"`     // memory in bytes with the default options
	Fits      *bool  `json:"fits"`                // in this machine's memory; null: not known
	Note      string `json:"note,omitempty"`      // the reason, if that is not known
}

// Run implements the command. It reads configs and headers, no weights.
func (c *ModelsCmd) Run(e *console.Env) error {
	cache := hubcache.Dir()
	for _, f := range c.Folders {
		info, err := os.Stat(f)
		switch {
		case err != nil:
			return fmt.Errorf("%s: no such file or folder", f)
		case !info.IsDir() && !strings.EqualFold(filepath.Ext(f), ".gguf"):
			return fmt.Errorf("%s: it is a file: name the model's folder, or a .gguf file", f)
		}
	}
	list := []model{}
	for _, f := range hubcache.Find(c.Folders, cache) {
		list = append(list, look(f, e.Here()))
	}
	if c.JSON {
		return console.WriteJSON(e.Out, list)
	}
	if len(list) == 0 {
		e.Say(strings.Join(append(c.Folders, cache), ", ") + ": there are no models; krater pull ORG/MODEL downloads one")
		return nil
	}
	return table(term.Safe(e.Out), list)
}

func table(out io.Writer, list []model) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "model\tfamily\tsize\tprecision\tfits\tpath")
	for _, m := range list {
		fits := "unknown: " + m.Note
		if m.Fits != nil {
			fits = map[bool]string{true: "yes", false: "no"}[*m.Fits] + ", needs " + planner.Size(m.Needs)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", m.Name, cmp.Or(m.Family, "unknown"), planner.Size(m.Bytes), cmp.Or(m.Precision, "unknown"), fits, m.Path)
	}
	return w.Flush()
}

// look describes a model that was found.
func look(f hubcache.Found, here *machine.Machine) model {
	m := model{Name: f.Name, Path: f.Path}
	describe := m.fromFolder
	if f.GGUF() {
		describe = m.fromGGUF
	}
	err := describe()
	if err == nil {
		err = m.plan(here)
	}
	if err != nil {
		m.Note = firstLine(strings.TrimPrefix(err.Error(), f.Path+": "))
	}
	return m
}

// firstLine shortens an error for a list.
func firstLine(text string) string {
	const most = 100
	line, _, _ := strings.Cut(text, "\n")
	if r := []rune(line); len(r) > most {
		line = string(r[:most-3]) + "..."
	}
	return line
}

// facts are the fields of a config.json that describe the weights of any family.
type facts struct {
	Family string `json:"model_type"`
	DType  string `json:"dtype"`
	Torch  string `json:"torch_dtype"`
	Quant  *struct {
		Method string `json:"quant_method"`
		Format string `json:"format"`
	} `json:"quantization_config"`
	Text *facts `json:"text_config"`
}

// fromFolder reads config.json and the sizes of the safetensors.
func (m *model) fromFolder() error {
	m.add(hubcache.Tensors(m.Path))
	data, err := files.Read(filepath.Join(m.Path, "config.json"), source.FileMaxBytes)
	if err != nil {
		return err
	}
	var c facts
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("config.json: %w", err)
	}
	m.Family = c.Family
	for f := &c; f != nil; f = f.Text {
		m.Precision = cmp.Or(m.Precision, strings.TrimPrefix(cmp.Or(f.DType, f.Torch), "torch."))
		if f.Quant != nil {
			m.Precision = strings.TrimSpace(cmp.Or(f.Quant.Method, "quantised") + " " + f.Quant.Format)
			break
		}
	}
	if q, err := spec.ParseQuantization(data); err == nil && q != nil {
		m.Precision = q.String()
	}
	return nil
}

// fromGGUF reads the metadata of a .gguf file.
func (m *model) fromGGUF() error {
	f, err := gguf.Open(m.Path)
	if err != nil {
		m.add([]string{m.Path})
		return err
	}
	defer f.Close()
	m.add(f.Paths())
	m.Precision = f.Quantisation()
	m.Family, err = f.String("general.architecture")
	return err
}

func (m *model) add(paths []string) {
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil {
			m.Bytes += info.Size()
		}
	}
}

// plan finds out whether the model fits with the default options.
func (m *model) plan(here *machine.Machine) error {
	src, err := source.Open(m.Path)
	if err != nil {
		return err
	}
	cfg, _, err := src.Config()
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "model "+src.Name+": config.json: "))
	}
	p, err := plan.New(cfg, src.TokenizerSize(), config.Default(), config.Case{}, here)
	if err != nil {
		return err
	}
	fits := p.Memory.Fits()
	m.Fits, m.Needs = &fits, p.Memory.Devices[0].Planned
	return nil
}
