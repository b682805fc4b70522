package hub

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"krater/stages/source/hubcache"
)

// usual are the small files that belong to a model, besides its safetensors.
var usual = []string{
	"config.json", "generation_config.json", "model.safetensors.index.json",
	"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tiktoken.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
	"chat_template.jinja", "chat_template.json",
}

// pickles are endings of files that run code when PyTorch loads them.
var pickles = []string{".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"}

func pickle(name string) bool { return slices.Contains(pickles, strings.ToLower(path.Ext(name))) }

// choose returns the files to download: those that the patterns match, the .gguf files of the quantisation, or by default those
// of a safetensors model.
func choose(all []File, ref hubcache.Ref, include []string) ([]File, error) {
	var names []string
	for _, f := range all {
		names = append(names, f.Path)
	}
	var wanted []string
	var err error
	switch {
	case len(include) > 0:
		wanted, err = included(names, include)
	case ref.Quant == "":
		wanted, err = folder(names, ref.Repo)
	}
	if err == nil && ref.Quant != "" {
		var parts []string
		parts, err = hubcache.Select(names, ref.Quant)
		wanted = append(wanted, parts...)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	return slices.DeleteFunc(slices.Clone(all), func(f File) bool { return !slices.Contains(wanted, f.Path) }), nil
}

// folder chooses the files that Krater needs of a model in safetensors: weights, tokenizer and template, from the top folder.
func folder(names []string, repo string) (wanted []string, err error) {
	indexed := slices.Contains(names, "model.safetensors.index.json") || slices.Contains(names, "model.safetensors")
	weights := false
	for _, name := range names {
		switch {
		case slices.Contains(usual, name):
			wanted = append(wanted, name)
		case strings.HasSuffix(name, ".safetensors") && !strings.Contains(name, "/"):
			if indexed && strings.HasPrefix(name, "consolidated") { // the same weights under other names
				continue
			}
			weights = true
			wanted = append(wanted, name)
		}
	}
	if weights {
		return wanted, nil
	}
	if quants := hubcache.Quants(names); quants != nil {
		return nil, fmt.Errorf("it has GGUF files and no safetensors: name one behind a colon, such as krater pull %s:%s; there are %s",
			repo, quants[0], strings.Join(quants[:min(len(quants), quantsMost)], ", "))
	}
	if at := slices.IndexFunc(names, pickle); at >= 0 {
		return nil, fmt.Errorf("its weights are pickles (%s), which can run code when they are loaded; Krater reads safetensors and GGUF", names[at])
	}
	return nil, errors.New("it has no safetensors and no GGUF files")
}

// quantsMost bounds the quantisations in an error.
const quantsMost = 40

// included returns the files that the patterns match. A pickle must be named without wildcards.
func included(names, patterns []string) (wanted []string, err error) {
	for _, p := range patterns {
		match, err := glob(p)
		if err != nil {
			return nil, fmt.Errorf("--include %q: %w", p, err)
		}
		n, refused := 0, ""
		for _, name := range names {
			switch {
			case !match.MatchString(name):
			case pickle(name) && name != p:
				refused = name
			default:
				n++
				wanted = append(wanted, name)
			}
		}
		switch {
		case n == 0 && refused != "":
			return nil, fmt.Errorf("--include %s: %s is a pickle, which can run code when it is loaded: name it in full if you want it", p, refused)
		case n == 0:
			return nil, fmt.Errorf("--include %s: the model has no such file", p)
		}
	}
	return wanted, nil
}

// glob compiles a pattern with the meaning of the hub's own tool: * matches any text, with slashes, and ? one character.
func glob(pattern string) (*regexp.Regexp, error) {
	text := regexp.QuoteMeta(pattern)
	text = strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(text)
	return regexp.Compile("^" + text + "$")
}
