package cmdline

// Pages is the manual: what a command is for in a few words, and lines to try, by the
// command's name. Every example is a valid command line of this program; files in them need
// not exist.
var Pages = map[string]page{
	"": {
		about: "Krater serves large mixture-of-experts models on one machine with little VRAM and much RAM. Without --model every command uses a small model that is built in.",
		Examples: []example{
			{"krater serve", "Serve the built-in model on 127.0.0.1:8080."},
			{"krater run \"What is a lighthouse?\"", "Ask it something."},
			{"krater chat", "Talk with it."},
			{"krater doctor --model /models/DeepSeek-V2-Lite", "Find out whether a model fits this machine."},
		},
	},
	"launch": {
		about: "A wizard on the terminal. It finds models in the folders named (default: this one) and in Hugging Face's cache, shows the machine, and says of each choice what memory it takes and how fast it would be, before anything is loaded. What is chosen goes into a file that krater serve --config reads; then the server starts, or a benchmark, or nothing.",
		Examples: []example{
			{"krater launch", "Look through this folder and Hugging Face's cache."},
			{"krater launch /models --save big.yaml", "Look through another folder, write another file."},
		},
	},
	"serve": {
		about: "Doors for the Chat Completions, Completions and Responses APIs over HTTP, and for the Responses API over a WebSocket. It listens at once and says on /ready when the model is loaded. SIGINT, SIGTERM and SIGHUP (its terminal was closed; not under nohup) let running answers end; a second SIGINT or SIGTERM does not wait for them.",
		Examples: []example{
			{"krater serve --model /models/DeepSeek-V2-Lite --listen 0.0.0.0:8080 --api-keys keys.txt", "Open a model to a network, with keys."},
			{"krater serve --model /models/DeepSeek-V2-Lite --device cuda --decode-strategy auto", "Layers on a GPU, experts where they are fastest."},
			{"krater serve --config krater.yaml --print-config", "Show the settings that a file gives, and where each came from."},
		},
	},
	"run": {
		about: "One question, one answer, and the speed of both. The answer goes to standard output, all else to standard error. Without a question it is krater chat on a terminal, and reads the question from standard input elsewhere. One word that names a model is asked about, since other programs take a model there: -- before it makes it a question.",
		Examples: []example{
			{"krater run \"What is a lighthouse?\"", "Ask the built-in model."},
			{"krater run --model /models/DeepSeek-V2-Lite --temperature 0 --max-tokens 100 --file prompt.txt", "A prompt from a file, greedily."},
		},
	},
	"chat": {
		about: "A conversation on the terminal: with a model that is loaded for it, or with a running server. Lines are edited and found again with the arrow keys; they are kept in krater/chat-history in the user's state folder, which nobody else can read. \\ at the end of a line and \"\"\" around several lines make a longer message, and what is pasted stays together. Ctrl-C cancels an answer; Ctrl-D leaves. The next turn is quick: what was computed of the conversation is kept. /help lists the commands.",
		Examples: []example{
			{"krater chat", "Talk with the built-in model."},
			{"krater chat --model /models/DeepSeek-V2-Lite --system \"Answer in one sentence.\"", "With another model and a system text."},
			{"krater chat --server http://127.0.0.1:8080", "With a server that runs already."},
		},
	},
	"compare": {
		about: "Every operator of a prompt is held against what a reference computed. The first one that differs is named with its figures, and usual mistakes of layout are tried on it: what explains the difference is printed with the error before and after. docs/hooks/dump.py makes such a dump of a PyTorch model; docs/compare.md explains the rest. The exit status is 0 only when everything agrees.",
		Examples: []example{
			{"krater compare --model /models/DeepSeek-V2-Lite --golden dump", "Compare with a dump."},
			{"krater compare --model /models/DeepSeek-V2-Lite --golden dump --device cuda --rows bf16 --json", "The same on a GPU as it serves, for a program."},
		},
	},
	"ppl": {
		Examples: []example{
			{"krater ppl --text README.md", "Perplexity of a text under the built-in model."},
			{"krater ppl --model /models/DeepSeek-V2-Lite --text heldout.txt --cpu-expert-bits 4 --against bf16", "What four bits cost: how far the model is from its own files."},
		},
	},
	"convert": {
		about: "A start that needs experts as integers makes them and keeps them. This makes them ahead of it. An interrupted conversion goes on where it was.",
		Examples: []example{
			{"krater convert --model /models/DeepSeek-V2-Lite --cpu-expert-bits 4", "Experts in four bits."},
			{"krater convert --model /models/DeepSeek-V2-Lite --cpu-expert-bits 4 --calibration text.txt", "The same by what the experts see of a text: slower, better."},
		},
	},
	"synth": {
		about: "Models of the shapes of real ones with random weights, for measuring speed and memory without a download.",
		Examples: []example{
			{"krater synth --shape deepseek-v2-lite --layers 4 --out /tmp/lite4", "Four layers, experts as integers."},
			{"krater synth --shape qwen3-30b-a3b --in-memory", "See what it takes in memory."},
		},
	},
	"bench": {
		about: "Without a part's name the engine is measured with its actors: bench engine.",
		Examples: []example{
			{"krater bench --actors-vs-direct", "What the actors cost."},
			{"krater bench kernels", "Each kernel beside what memory gives."},
			{"krater bench model --shape deepseek-v2-lite --layers 4", "A real shape with random weights."},
		},
	},
	"bench engine": {Examples: []example{
		{"krater bench engine --actors-vs-direct --json", "A step through the actors beside the same stages as calls."},
		{"krater bench engine --batch 1,8,32 --decode 64", "Tokens a second by the number of streams."},
	}},
	"bench kernels": {Examples: []example{
		{"krater bench kernels --plot kernels.svg", "Measure and draw."},
		{"krater bench kernels --device cuda", "A GPU's operators, checked and timed."},
	}},
	"bench model": {Examples: []example{
		{"krater bench model", "The built-in model: decode, prefill, where the time goes."},
		{"krater bench model --shape deepseek-v2-lite --layers 4 --plot lite.png", "A real shape, drawn."},
	}},
	"bench strategies": {Examples: []example{
		{"krater bench strategies --shape deepseek-v2-lite --layers 3", "All strategies side by side on a described card."},
	}},
	"bench serve": {
		about: "Sends requests to a server that runs, through one or several of its doors: so many a second whether or not those before are answered (--rate, --sweep), or so many clients that ask again when they are answered (--concurrency).",
		Examples: []example{
			{"krater bench serve --concurrency 1,8,32 --requests 64", "Throughput and latencies by the number of clients."},
			{"krater bench serve --sweep 1,2,4,8 --duration 60s --plot load.svg", "Where latencies begin to rise, drawn."},
			{"krater bench serve --door completions,websocket --rate 2 --mix sharegpt", "Conversations through two doors at the same time."},
		},
	},
	"batch": {
		about: "Batches are files of requests that a server with --batch-dir works off in the background of others, and goes on with after a restart.",
		Examples: []example{
			{"krater batch submit requests.jsonl --wait", "Upload, start and wait."},
			{"krater batch status", "The newest ones."},
		},
	},
	"batch submit": {Examples: []example{
		{"krater batch submit requests.jsonl", "Print the new batch's id."},
		{"krater batch submit requests.jsonl --url http://10.0.0.5:8080 --wait", "On another server, until it is done."},
	}},
	"batch status": {Examples: []example{
		{"krater batch status", "The newest batches."},
		{"krater batch status batch_123 --json", "One of them, for a program."},
	}},
	"batch fetch": {Examples: []example{
		{"krater batch fetch batch_123 --output answers.jsonl", "The answers."},
		{"krater batch fetch batch_123 --errors", "The lines that failed."},
	}},
	"batch cancel": {Examples: []example{{"krater batch cancel batch_123", "No more lines are started."}}},
	"trace": {
		about: "What the actors of a running server do, message by message: docs/trace.md says how to read it. The page /trace of the server shows the same live.",
		Examples: []example{
			{"krater trace record --seconds 10 --out step.json", "Record a server."},
			{"krater trace show step.json", "See it on the terminal."},
		},
	},
	"trace record": {Examples: []example{
		{"krater trace record --out step.json", "Five seconds of the server on this machine, for ui.perfetto.dev too."},
		{"krater trace record --url http://10.0.0.5:8080 --seconds 20 --out step.json", "Another server, longer."},
	}},
	"trace show": {Examples: []example{
		{"krater trace show step.json --steps 1", "The last step alone."},
	}},
	"heatmap": {
		about: "Routers prefer some experts. Which ones is worth knowing where a card has room for some: krater serve --heat-file starts from such a map.",
		Examples: []example{
			{"krater heatmap --text README.md --plot heat.svg", "Count on a text, print and draw."},
			{"krater heatmap --load monday.json --load tuesday.json --save week.json", "Add maps up."},
		},
	},
	"plan": {
		about: "Nine strategies say where routed experts are computed and what is copied to a card for it. All are predicted from config.json and the rates of the machine; the fastest that fit are marked. The exit status is 1 when nothing fits.",
		Examples: []example{
			{"krater plan --model /models/DeepSeek-V2-Lite --vram 16GiB", "This machine's card, with so much of its memory."},
			{"krater plan --shape deepseek-v2-lite --card rtx-3090 --vram 6GiB --json", "A card that is not there, for a program."},
		},
	},
	"doctor": {
		about: "Looks at processors, memory, huge pages, nodes, disk and GPUs, and at the memory that a model needs; loads nothing. The exit status is 1 when the model does not fit.",
		Examples: []example{
			{"krater doctor", "This machine and the built-in model."},
			{"krater doctor --model /models/DeepSeek-V2-Lite --cpu-expert-bits 4 --json", "Another model and precision, for a program."},
		},
	},
	"tokenize":   {Examples: []example{{"krater tokenize --model /models/DeepSeek-V2-Lite", "Lines of base64 text on standard input."}}},
	"detokenize": {Examples: []example{{"krater detokenize --model /models/DeepSeek-V2-Lite", "Lists of ids on standard input."}}},
	"template":   {Examples: []example{{"krater template --model /models/DeepSeek-V2-Lite", "Conversations as JSON on standard input."}}},
	"completion": {
		about: "Writes a script that has the shell complete commands, flags, their values and files.",
		Examples: []example{
			{"krater completion bash", "As in: source <(krater completion bash)"},
			{"krater completion zsh", "Into a file _krater in a folder of $fpath."},
			{"krater completion fish", "Into ~/.config/fish/completions/krater.fish."},
		},
	},
	"help": {Examples: []example{
		{"krater help serve", "Every setting of the server."},
		{"krater help bench model", "A command within a command."},
	}},
	"version": {Examples: []example{
		{"krater version --licenses", "The licences of what is linked."},
		{"krater version --json", "For a program."},
	}},
}
