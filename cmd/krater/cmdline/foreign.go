package cmdline

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"krater/stages/synth"
)

// Answers for users who come from vLLM, llama.cpp, SGLang and Ollama.

// ForeignFlags says what to use instead of a flag of another program, by its name without dashes.
// VALUE stands for the value given.
var ForeignFlags = map[string]string{
	"host":                     "use --listen VALUE:8080",
	"port":                     "use --listen 127.0.0.1:VALUE",
	"p":                        "the question of krater run is an argument; the address of krater serve is --listen HOST:PORT",
	"m":                        "use --model DIR",
	"model-path":               "use --model DIR",
	"hf-repo":                  pullFirst,
	"hf":                       pullFirst,
	"hf-file":                  "krater pull ORG/MODEL --include VALUE downloads it",
	"hff":                      "krater pull ORG/MODEL --include VALUE downloads it",
	"model-url":                "krater pull ORG/MODEL downloads a model from a hub",
	"mu":                       "krater pull ORG/MODEL downloads a model from a hub",
	"download-dir":             "krater pull downloads into Hugging Face's cache: set HF_HOME",
	"revision":                 "use --model ORG/MODEL@VALUE",
	"hf-token":                 "set HF_TOKEN for krater pull",
	"tokenizer":                "the tokenizer comes from the model's folder",
	"tokenizer-path":           "the tokenizer comes from the model's folder",
	"chat-template":            "the chat template comes from the model's folder: chat_template.jinja or tokenizer_config.json",
	"chat-template-file":       "the chat template comes from the model's folder: chat_template.jinja or tokenizer_config.json",
	"jinja":                    "chat templates are always used; leave it out",
	"trust-remote-code":        "Krater never runs code of a model; leave it out",
	"alias":                    "use --served-model-name VALUE",
	"a":                        "use --served-model-name VALUE",
	"ctx-size":                 noContext,
	"c":                        noContext,
	"max-model-len":            noContext,
	"context-length":           noContext,
	"num-ctx":                  noContext,
	"n-gpu-layers":             allLayers,
	"gpu-layers":               allLayers,
	"ngl":                      allLayers,
	"cpu-moe":                  "use --device cuda --prefill-strategy cpu_only --decode-strategy cpu_only: experts on the CPU",
	"cmoe":                     "use --device cuda --prefill-strategy cpu_only --decode-strategy cpu_only: experts on the CPU",
	"n-cpu-moe":                "use --device cuda --expert-vram SIZE, the GPU memory for experts",
	"ncmoe":                    "use --device cuda --expert-vram SIZE, the GPU memory for experts",
	"override-tensor":          "use --prefill-strategy and --decode-strategy, which say where experts are computed",
	"ot":                       "use --prefill-strategy and --decode-strategy, which say where experts are computed",
	"cpu-offload-gb":           "use --vram SIZE; experts that do not fit stay in host memory",
	"tensor-parallel-size":     oneGPU,
	"tp":                       oneGPU,
	"tp-size":                  oneGPU,
	"pipeline-parallel-size":   oneGPU,
	"data-parallel-size":       oneGPU,
	"enable-expert-parallel":   oneGPU,
	"tensor-split":             oneGPU,
	"ts":                       oneGPU,
	"split-mode":               oneGPU,
	"sm":                       oneGPU,
	"main-gpu":                 "use --gpu VALUE",
	"mg":                       "use --gpu VALUE",
	"gpu-memory-utilization":   "use --vram SIZE, such as 20GiB",
	"mem-fraction-static":      "use --vram SIZE, such as 20GiB",
	"t":                        "use --threads VALUE",
	"tb":                       "use --threads VALUE",
	"threads-batch":            "use --threads VALUE",
	"numa":                     "Krater uses NUMA nodes by itself; --expert-pools sets the number of pools",
	"kv-cache-dtype":           "use --kv-dtype: bf16, f32, fp8 or int8",
	"cache-type-k":             "use --kv-dtype: bf16, f32, fp8 or int8",
	"ctk":                      "use --kv-dtype: bf16, f32, fp8 or int8",
	"cache-type-v":             "use --kv-dtype: bf16, f32, fp8 or int8",
	"ctv":                      "use --kv-dtype: bf16, f32, fp8 or int8",
	"kv-cache-memory-bytes":    "use --kv-cache SIZE",
	"swap-space":               "use --kv-ram SIZE",
	"kv-offloading-size":       "use --kv-ram SIZE",
	"block-size":               "use --block-tokens VALUE",
	"page-size":                "use --block-tokens VALUE",
	"max-num-seqs":             "use --max-seqs VALUE",
	"max-running-requests":     "use --max-seqs VALUE",
	"parallel":                 "use --max-seqs VALUE",
	"np":                       "use --max-seqs VALUE",
	"num-parallel":             "use --max-seqs VALUE",
	"max-num-batched-tokens":   "use --max-batch-tokens VALUE",
	"batch-size":               "use --prefill-chunk VALUE",
	"b":                        "use --prefill-chunk VALUE",
	"ubatch-size":              "use --prefill-chunk VALUE",
	"ub":                       "use --prefill-chunk VALUE",
	"chunked-prefill-size":     "use --prefill-chunk VALUE",
	"enable-chunked-prefill":   "prompts are always computed in chunks (--prefill-chunk); leave it out",
	"enable-prefix-caching":    "use --prefix-cache, which is on by default",
	"no-enable-prefix-caching": "use --no-prefix-cache",
	"disable-radix-cache":      "use --no-prefix-cache",
	"dtype":                    "use --precision: bf16, int8, int4 or mixed",
	"quantization":             "use --precision: bf16, int8, int4 or mixed",
	"q":                        "use --precision: bf16, int8, int4 or mixed",
	"load-format":              "weights are read from safetensors; leave it out",
	"enforce-eager":            "leave it out",
	"flash-attn":               "attention is always computed block by block; leave it out",
	"fa":                       "attention is always computed block by block; leave it out",
	"attention-backend":        "leave it out",
	"mlock":                    "use --cache-load copy, which copies converted weights into memory",
	"no-mmap":                  "use --cache-load copy, which copies converted weights into memory",
	"mmap":                     "use --cache-load map",
	"api-key":                  "use --api-keys FILE (krater serve), one key per line",
	"api-key-file":             "use --api-keys FILE, one key per line",
	"ssl-certfile":             "use --tls-cert FILE",
	"ssl-cert-file":            "use --tls-cert FILE",
	"ssl-keyfile":              "use --tls-key FILE",
	"ssl-key-file":             "use --tls-key FILE",
	"allowed-origins":          "use --origins URL",
	"cors-allow-origins":       "use --origins URL",
	"timeout":                  "use --drain-timeout, the time for running answers to finish at a stop",
	"metrics":                  "metrics are always served under /metrics; leave it out",
	"v":                        "use --log-level debug (krater serve), or krater version",
	"verbose":                  "use --log-level debug (krater serve)",
	"uvicorn-log-level":        "use --log-level VALUE",
	"log-verbosity":            "use --log-level debug",
	"disable-log-requests":     "use --log-level warn",
	"log-file":                 "the log goes to standard error: 2> FILE",
	"temp":                     "use --temperature VALUE (krater run and krater chat)",
	"n":                        answerLength,
	"n-predict":                answerLength,
	"predict":                  answerLength,
	"num-predict":              answerLength,
	"max-new-tokens":           answerLength,
	"s":                        "use --seed VALUE (krater run and krater chat)",
	"prompt":                   "the question of krater run is an argument",
	"f":                        "use --file FILE (krater run)",
	"sys":                      "use --system TEXT (krater run and krater chat)",
	"system-prompt":            "use --system TEXT (krater run and krater chat)",
	"i":                        "use krater chat",
	"interactive":              "use krater chat",
	"cnv":                      "use krater chat",
	"conversation":             "use krater chat",
	"keepalive":                "a model stays loaded as long as its server runs; leave it out",
	"speculative-config":       "Krater has no speculative decoding; leave it out",
	"model-draft":              "Krater has no speculative decoding; leave it out",
	"md":                       "Krater has no speculative decoding; leave it out",
	"lora":                     "Krater has no adapters",
	"enable-lora":              "Krater has no adapters",
	"tool-call-parser":         "leave it out; docs/http-api.md lists what is served",
	"enable-auto-tool-choice":  "leave it out; docs/http-api.md lists what is served",
	"reasoning-parser":         "leave it out; docs/http-api.md lists what is served",
	"embedding":                "Krater serves no embeddings",
	"embeddings":               "Krater serves no embeddings",
	"max-queued-requests":      "use --max-queue VALUE",
	"cb":                       "requests are always batched; leave it out",
	"otlp-traces-endpoint":     "use --otlp-endpoint URL",
}

const (
	pullFirst    = "krater pull VALUE downloads it, then use --model VALUE"
	noContext    = "every model is served with its full context; --kv-cache SIZE limits the memory for it"
	allLayers    = "with --device cuda all layers are on the GPU; --prefill-strategy and --decode-strategy say where experts are computed"
	oneGPU       = "Krater uses one GPU: --device cuda --gpu N"
	answerLength = "use --max-tokens VALUE (krater run and krater chat); a request to a server has max_tokens"
)

// ForeignCommands says what to use instead of a command of another program.
var ForeignCommands = map[string]string{
	"download": "krater pull ORG/MODEL downloads a model",
	"search":   "krater pull ORG/MODEL downloads a model that you know by name",
	"list":     "krater models lists the models in a folder and in Hugging Face's cache",
	"ls":       "krater models lists the models in a folder and in Hugging Face's cache",
	"rm":       "a model is a folder: remove the folder; its .krater_cache holds the converted weights",
	"create":   "a model is a folder: krater serve --model DIR",
	"show":     "krater doctor --model DIR shows what a model needs, krater plan how fast it would be",
	"ps":       "GET /v1/models of a server names its model; GET /metrics shows what it does",
	"stop":     "a server ends with Ctrl-C or SIGTERM",
	"start":    "krater serve starts a server",
	"server":   "krater serve starts a server",
	"quantize": "krater convert converts a model's experts to integers",
	"generate": "krater run asks one question",
	"complete": "krater run --raw continues a text",
	"cli":      "krater chat talks with a model",
	"ask":      "krater run asks one question",
	"web":      "krater serve has a page under /trace",
	"ui":       "krater serve has a page under /trace",
}

// Foreign says what to use instead of a flag that Krater does not have; "" if no other program is
// known to have it. value is the value given; "": none or unknown.
func Foreign(name, value string) string {
	text := ForeignFlags[name]
	if value == "" || strings.HasPrefix(value, "-") {
		value = map[string]string{"host": "HOST", "port": "PORT"}[name]
		if value == "" {
			value = "VALUE"
		}
	}
	return strings.ReplaceAll(text, "VALUE", value)
}

var unknownFlag = regexp.MustCompile(`^unknown flag (--?)([\w-]+)`)

// flagMeant says what a command line with an unknown flag should have instead; "" if unknown. text
// is the parser's error, which names only the first letter of a flag with one dash.
func flagMeant(app *kong.Application, args []string, text string) string {
	m := unknownFlag.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	name, value := m[2], ""
	for i, a := range args {
		if a == "--" {
			break
		}
		word, given, _ := strings.Cut(a, "=")
		bare, ok := strings.CutPrefix(word, m[1])
		if !ok || bare != name && (m[1] != "-" || !strings.Contains(bare, name) || ForeignFlags[bare] == "") {
			continue
		}
		name, value = bare, given
		if value == "" && i+1 < len(args) {
			value = args[i+1]
		}
		break
	}
	if meant := Foreign(name, value); meant != "" {
		return fmt.Sprintf("unknown flag %s%s: %s", m[1], name, meant)
	}
	if has := commandsWith(app, name); len(has) > 0 && m[1] == "--" {
		return fmt.Sprintf("unknown flag --%s: it belongs to %s", name, strings.Join(has, ", "))
	}
	return ""
}

// commandsWith returns the first three commands that have a flag.
func commandsWith(app *kong.Application, flag string) (names []string) {
	for _, c := range Completions(app.Node) {
		if len(c.commands) == 0 && slices.ContainsFunc(c.Flags, func(f *kong.Flag) bool { return f.Name == flag }) {
			names = append(names, "krater "+c.Path)
		}
	}
	return names[:min(3, len(names))]
}

// hubName matches a model's name on Hugging Face: organisation and model.
var hubName = regexp.MustCompile(`^[\w-][\w.-]*/[\w-][\w.-]*$`)

// modelFamilies are the beginnings of models' names. The first ones are rarely questions by
// themselves.
const modelFamilies = `llama|codellama|mistral|mixtral|ministral|devstral|qwen|qwq|deepseek|gemma|gpt-oss|kimi|glm|minimax|olmoe|starcoder|smollm|nemotron|tinyllama`

// modelNamed matches a word that names a model as other programs do: a family, usually with a size
// or version.
var modelNamed = regexp.MustCompile(`(?i)^((` + modelFamilies + `)|(` + modelFamilies + `|olmo|phi|falcon|yi|granite|command-r|dbrx|grok|krater)([-.:_]?v?\d|[-.:_][a-z]{1,12}[-.:\d]|[-:](tiny|chat|instruct|latest|base)$).*)$`)

// NamesModel reports whether a word is more likely a model than a question: a word without blanks
// that is a folder with a model, a file of weights, or a typical name of a model.
func NamesModel(word string) bool {
	if word == "" || strings.ContainsAny(word, " \t\n?!,;\"") {
		return false
	}
	if _, err := os.Stat(filepath.Join(word, "config.json")); err == nil {
		return true
	}
	lower := strings.ToLower(word)
	return strings.HasSuffix(lower, ".gguf") || strings.HasSuffix(lower, ".safetensors") || hubName.MatchString(word) ||
		modelNamed.MatchString(word) || slices.Contains(synth.Shapes(), lower)
}

// asGiven turns a path that the parser made absolute back into what the user probably typed:
// relative to the current folder.
func asGiven(path string) string {
	here, err := os.Getwd()
	if err != nil {
		return path
	}
	if rel, err := filepath.Rel(here, path); err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return path
}
