package cmdline

// Pages is the manual, by command name: a short description and examples. Every example is a valid
// command line of this program; files in it need not exist.
var Pages = map[string]page{
	"": {
		about: "Krater serves large mixture-of-experts language models on one machine with little VRAM and much RAM. Without --model, every command uses a small built-in model.",
		Examples: []example{
			{"krater serve", "Serve the built-in model on 127.0.0.1:8080."},
			{"krater run \"What is a lighthouse?\"", "Ask it a question."},
			{"krater chat", "Have a conversation with it."},
			{"krater doctor --model /models/DeepSeek-V2-Lite", "Check whether a model fits this machine."},
		},
	},
	"setup": {
		about: "A wizard on the terminal. It finds models in the given folders (default: the current one) and in Hugging Face's cache, and shows the memory and the speed of every choice before anything is loaded. It saves the settings in a file for krater serve --config. Then it starts the server or a benchmark, or exits.",
		Examples: []example{
			{"krater setup", "Choose among the models in this folder and in Hugging Face's cache."},
			{"krater setup /models --save big.yaml", "Search another folder, and save the settings in another file."},
		},
	},
	"launch": {
		about: "Starts a coding agent with its variables and arguments set, so that it uses this server. If no server runs at the address, one is started with the settings of krater.yaml (or --save or --config), and stopped when the agent ends; its log goes to a file. What comes after -- is given to the agent. Without an agent the command is krater setup.",
		Examples: []example{
			{"krater launch claude", "Start Claude Code."},
			{"krater launch codex --model /models/Qwen3-30B-A3B", "Serve a model, and start Codex."},
			{"krater launch ./claude", "Open the wizard, and search the folder of that name."},
		},
	},
	"serve": {
		about: "Serves the Chat Completions, Completions and Responses APIs over HTTP, and the Responses API over WebSocket. The server listens at once; /ready reports when the model is loaded. After SIGINT, SIGTERM or SIGHUP (unless it runs under nohup) it finishes running answers and exits. A second SIGINT or SIGTERM stops it at once.",
		Examples: []example{
			{"krater serve --model /models/DeepSeek-V2-Lite --listen 0.0.0.0:8080 --api-keys keys.txt", "Serve a model to a network, with API keys."},
			{"krater serve --model /models/DeepSeek-V2-Lite --device cuda --decode-strategy auto", "Compute layers on a GPU, and experts where that is fastest."},
			{"krater serve --config krater.yaml --print-config", "Show the settings of a file, and the source of each."},
		},
	},
	"run": {
		about: "Answers one question. The answer goes to standard output; timings go to standard error. Without a question, a chat begins if standard input is a terminal; otherwise the question is read from there. If the question is a single word that names a model, Krater asks whether you meant the model, because other programs expect one there. Put -- before the word to ask it as a question.",
		Examples: []example{
			{"krater run \"What is a lighthouse?\"", "Ask the built-in model."},
			{"krater run --model /models/DeepSeek-V2-Lite --temperature 0 --max-tokens 100 --file prompt.txt", "Answer a prompt from a file, with greedy decoding."},
		},
	},
	"chat": {
		about: "A conversation on the terminal, with a model that is loaded for it or with a running server. The arrow keys edit the line and recall earlier ones, which are kept in krater/chat-history in your state folder; only you can read the file. \\ at the end of a line or \"\"\" around several lines make a longer message; pasted lines stay together. Ctrl-C cancels an answer, and Ctrl-D leaves. Krater keeps the conversation's KV cache, so each turn computes only what is new. /help lists the commands.",
		Examples: []example{
			{"krater chat", "Talk with the built-in model."},
			{"krater chat --model /models/DeepSeek-V2-Lite --system \"Answer in one sentence.\"", "Use another model and a system message."},
			{"krater chat --server http://127.0.0.1:8080", "Use a running server."},
		},
	},
	"pull": {
		about: "Downloads a model from a Hugging Face compatible hub into the cache of Hugging Face's tools (HF_HOME, HF_HUB_CACHE), and prints its path. Every command takes the same name with --model. Without --include it downloads config, tokenizer, chat template and safetensors, or the .gguf files of the given quantisation. Every file is checked against the hub's hash. To continue an interrupted download, run the same command again. HF_TOKEN, or the token of hf auth login, is sent to the hub only.",
		Examples: []example{
			{"krater pull deepseek-ai/DeepSeek-V2-Lite-Chat", "Download a model."},
			{"krater pull unsloth/Qwen3-30B-A3B-GGUF:Q4_K_M", "The GGUF files of one quantisation."},
			{"krater pull Qwen/Qwen3-30B-A3B@main --include *.json --hub https://hub.example", "Some files of a revision, from another hub."},
		},
	},
	"models": {
		about: "Lists the models in Hugging Face's cache and in the folders named, with family, size, precision, and whether they fit this machine's memory with the default options. It reads configs and headers only. krater doctor says more about one model.",
		Examples: []example{
			{"krater models", "List the models in the cache."},
			{"krater models /models --json", "Include another folder, for a program."},
		},
	},
	"compare": {
		about: "Compares every operator of a prompt with what a reference implementation computed. It prints the first operator that differs, and tries the usual mistakes of layout on it: a mistake that explains the difference is named, with the error before and after. docs/hooks/dump.py dumps the operators of a PyTorch model; docs/compare.md explains the rest. The exit status is 0 only when everything agrees.",
		Examples: []example{
			{"krater compare --model /models/DeepSeek-V2-Lite --golden dump", "Compare with a dump of a PyTorch model."},
			{"krater compare --model /models/DeepSeek-V2-Lite --golden dump --device cuda --rows bf16 --json", "Do the same on a GPU with rounded activations, and print JSON."},
		},
	},
	"worker": {
		about: "The server is started with krater serve --worker-listen; docs/cluster.md describes both. The worker's flags are about its own devices and files. Everything else is the server's. When the server ends, the worker keeps its layers and waits for it.",
		Examples: []example{
			{"krater worker --join host-a:7070 --worker-certs ~/krater-certs", "Compute some layers on this machine's CPU."},
			{"krater worker --join host-a:7070 --worker-certs ~/krater-certs --device cuda --model /models/DeepSeek-V2-Lite", "Compute them on a GPU, with the model in another folder than on host-a."},
		},
	},
	"certs": {
		about: "A cluster is several processes that serve one model together, on one machine or several. Its members take connections from each other only, by certificates of one authority. This command makes the authority and a pair of files for each member. Copy ca.pem and the member's own pair to its machine, and keep ca.key where it is: anybody who has it can make members.",
		Examples: []example{
			{"krater certs ~/krater-certs", "Make an authority, a pair for the leader, and one that all workers may share."},
			{"krater certs ~/krater-certs worker1 worker2", "Make pairs of two workers, by the same authority."},
		},
	},
	"ppl": {
		Examples: []example{
			{"krater ppl --text README.md", "Measure the built-in model."},
			{"krater ppl --model /models/DeepSeek-V2-Lite --text heldout.txt --cpu-expert-bits 4 --against bf16", "Measure what 4-bit experts cost: the distance from the model as its files hold it."},
		},
	},
	"convert": {
		about: "The first start with integer experts converts them and keeps the result. This command converts them beforehand. An interrupted conversion continues where it stopped.",
		Examples: []example{
			{"krater convert --model /models/DeepSeek-V2-Lite --cpu-expert-bits 4", "Convert experts to 4 bits."},
			{"krater convert --model /models/DeepSeek-V2-Lite --cpu-expert-bits 4 --calibration text.txt", "Do the same with statistics of a text, which is slower and more accurate."},
		},
	},
	"synth": {
		about: "Makes models with the shapes of real ones and random weights, to measure speed and memory without a download.",
		Examples: []example{
			{"krater synth --shape deepseek-v2-lite --layers 4 --out /tmp/lite4", "Write four layers, with experts as integers."},
			{"krater synth --shape qwen3-30b-a3b --in-memory", "Measure the memory that a model takes."},
		},
	},
	"bench links": {
		Examples: []example{{"krater bench links --device cuda:0,cuda:1", "Time the kinds of links between two GPUs, and plant a fault in each."}},
	},
	"bench doors": {
		Examples: []example{{"krater bench doors --windows 3", "Measure 10,000 WebSocket streams of a scripted engine in three windows."}},
	},
	"bench": {
		about: "Without a subcommand, it runs bench engine.",
		Examples: []example{
			{"krater bench --actors-vs-direct", "Measure what the actors cost."},
			{"krater bench kernels", "Compare each kernel with memory bandwidth."},
			{"krater bench model --shape deepseek-v2-lite --layers 4", "Measure a real shape with random weights."},
		},
	},
	"bench engine": {Examples: []example{
		{"krater bench engine --actors-vs-direct --json", "Compare a step through the actors with plain calls of the same stages."},
		{"krater bench engine --batch 1,8,32 --decode 64", "Measure tokens per second by the number of streams."},
	}},
	"bench kernels": {Examples: []example{
		{"krater bench kernels --plot kernels.svg", "Measure, and draw the report."},
		{"krater bench kernels --device cuda", "Check and measure the operators of a GPU."},
	}},
	"bench model": {Examples: []example{
		{"krater bench model", "Measure the built-in model: decode, prefill and the time of each stage."},
		{"krater bench model --shape deepseek-v2-lite --layers 4 --plot lite.png", "Measure a real shape, and draw the report."},
	}},
	"bench strategies": {Examples: []example{
		{"krater bench strategies --shape deepseek-v2-lite --layers 3", "Compare all strategies on a simulated GPU."},
	}},
	"bench serve": {
		about: "Sends requests to a running server, over one or several of its APIs. An open loop (--rate, --sweep) sends at a fixed rate, whether or not earlier requests are answered. A closed loop (--concurrency) has a fixed number of clients, each of which waits for an answer before its next request.",
		Examples: []example{
			{"krater bench serve --concurrency 1,8,32 --requests 64", "Measure throughput and latencies by the number of clients."},
			{"krater bench serve --sweep 1,2,4,8 --duration 60s --plot load.svg", "Find the rate at which latencies rise, and draw it."},
			{"krater bench serve --door completions,websocket --rate 2 --mix sharegpt", "Run conversations over two APIs at the same time."},
		},
	},
	"batch": {
		about: "Batches are files of requests. A server answers them in the background of other requests, and continues them after a restart.",
		Examples: []example{
			{"krater batch submit requests.jsonl --wait", "Upload a file, start the batch and wait for its end."},
			{"krater batch status", "List the newest batches."},
		},
	},
	"batch submit": {Examples: []example{
		{"krater batch submit requests.jsonl", "Start a batch and print its id."},
		{"krater batch submit requests.jsonl --url http://10.0.0.5:8080 --wait", "Use another server, and wait for the end."},
	}},
	"batch status": {Examples: []example{
		{"krater batch status", "List the newest batches."},
		{"krater batch status batch_123 --json", "Print one batch as JSON."},
	}},
	"batch fetch": {Examples: []example{
		{"krater batch fetch batch_123 --output answers.jsonl", "Download the answers."},
		{"krater batch fetch batch_123 --errors", "Download the lines that failed."},
	}},
	"batch cancel": {Examples: []example{{"krater batch cancel batch_123", "Start no more lines of the batch."}}},
	"trace": {
		about: "Shows what the actors of a running server do, message by message. docs/trace.md explains how to read it. The server's page /trace shows the same live.",
		Examples: []example{
			{"krater trace record --seconds 10 --out step.json", "Record the server on this machine."},
			{"krater trace show step.json", "Show the recording on the terminal."},
		},
	},
	"trace record": {Examples: []example{
		{"krater trace record --out step.json", "Record five seconds of the server on this machine."},
		{"krater trace record --url http://10.0.0.5:8080 --seconds 20 --out step.json", "Record another server for longer."},
	}},
	"trace show": {Examples: []example{
		{"krater trace show step.json --steps 1", "Show only the last step."},
	}},
	"heatmap": {
		about: "Routers prefer some experts. A GPU that cannot hold all experts should hold those. This command counts them on a text; krater serve --heat-file uses the resulting heat map.",
		Examples: []example{
			{"krater heatmap --text README.md --plot heat.svg", "Count on a text; print and draw the map."},
			{"krater heatmap --load monday.json --load tuesday.json --save week.json", "Add maps up."},
		},
	},
	"plan": {
		about: "Ten strategies say where routed experts are computed, and what is copied to the GPU for that. This command predicts the speed of each from config.json and the rates of the machine, and marks the fastest ones that fit. The exit status is 1 when none fits.",
		Examples: []example{
			{"krater plan --model /models/DeepSeek-V2-Lite --vram 16GiB", "Predict for this machine's GPU with a limit on its memory."},
			{"krater plan --shape deepseek-v2-lite --card rtx-3090 --vram 6GiB --json", "Predict for another GPU, and print JSON."},
		},
	},
	"doctor": {
		about: "Checks CPUs, memory, huge pages, NUMA nodes, disk and GPUs, and the memory that a model needs. It loads nothing. The exit status is 1 when the model does not fit.",
		Examples: []example{
			{"krater doctor", "Check this machine and the built-in model."},
			{"krater doctor --model /models/DeepSeek-V2-Lite --cpu-expert-bits 4 --json", "Check another model and precision, and print JSON."},
		},
	},
	"tokenize":   {Examples: []example{{"krater tokenize --model /models/DeepSeek-V2-Lite", "Tokenize lines of standard input."}}},
	"detokenize": {Examples: []example{{"krater detokenize --model /models/DeepSeek-V2-Lite", "Detokenize lists of standard input."}}},
	"template":   {Examples: []example{{"krater template --model /models/DeepSeek-V2-Lite", "Render conversations of standard input."}}},
	"completion": {
		about: "Prints a script with which the shell completes commands, flags, their values and files.",
		Examples: []example{
			{"krater completion bash", "Use as: source <(krater completion bash)"},
			{"krater completion zsh", "Save as _krater in a folder of $fpath."},
			{"krater completion fish", "Save as ~/.config/fish/completions/krater.fish."},
		},
	},
	"help": {Examples: []example{
		{"krater help serve", "Show every setting of the server."},
		{"krater help bench model", "Show a subcommand."},
	}},
	"version": {Examples: []example{
		{"krater version --licenses", "Print the licences of all linked code."},
		{"krater version --json", "Print JSON."},
	}},
}
