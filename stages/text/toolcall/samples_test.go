package toolcall

// testTools are the tools of the samples.
const testTools = `[
{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{
 "city":{"type":"string"},"days":{"type":"integer"},"hourly":{"type":"boolean"},"note":{"type":["string","null"]},
 "tags":{"type":"array","items":{"type":"string"}},"at":{"$ref":"#/$defs/place"},"any":{}},
 "$defs":{"place":{"type":"object","properties":{"lat":{"type":"number"},"name":{"type":"string"},"zip":{"type":"string"}}}}}}},
{"type":"function","function":{"name":"write-file","parameters":{"type":"object","properties":{"path":{"type":"string"},"text":{"type":"string"}}}}},
{"type":"function","function":{"name":"now"}}]`

// call is a call as a client sees it.
type call struct{ name, args, id string }

// sample is a text that a model of a family wrote, and the parts that it has.
type sample struct {
	name, sign string // sign is a text of the family's template
	text       string
	inside     bool
	noTools    bool
	hermes     bool

	reasoning, answer string
	calls             []call
}

const (
	deepseekSign = "<think></think>" + deepseekOpen
	kimiSign     = "<think>" + kimiOpen
	qwenSign     = "<think>" + hermesOpen
	coderSign    = "<think>" + hermesOpen + coderOpen
	glmSign      = "<think>" + hermesOpen + "<arg_key>"
	gemmaSign    = "<|channel>thought" + gemmaOpen
	minimaxSign  = "<think><minimax:tool_call>"
	m3           = minimax3Mark
)

var samples = []sample{
	{name: "plain", sign: "{{ x }}", text: "Two <b>bold</b> words <tool\n ", answer: "Two <b>bold</b> words <tool\n "},
	{name: "reasoning", sign: qwenSign, text: "<think>\nIs it 2 < 3?\n\n</think>\n\nYes.", reasoning: "Is it 2 < 3?", answer: "Yes."},
	{name: "reasoning opened by the prompt", sign: qwenSign, inside: true, text: "Hm.\n</think>\n\nYes </think>.", reasoning: "Hm.", answer: "Yes </think>."},
	{name: "reasoning opened twice", sign: qwenSign, inside: true, text: "\n<think>\nHm.</think>Yes", reasoning: "Hm.", answer: "Yes"},
	{name: "reasoning cut", sign: qwenSign, text: "<think>\nI think </th", reasoning: "I think </th"},
	{name: "no reasoning within text", sign: qwenSign, text: "Write <think>x</think>.", answer: "Write <think>x</think>."},
	{name: "a marker cut", sign: qwenSign, text: "a <tool_ca", answer: "a <tool_ca"},
	{name: "without tools", sign: qwenSign, noTools: true, text: `<tool_call>{"name":"now","arguments":{}}</tool_call>`, answer: `<tool_call>{"name":"now","arguments":{}}</tool_call>`},

	{name: "hermes", sign: qwenSign, text: "<think>\nWeather.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Köln \\\"x\\\" </tool_call> {\\ud83d\\ude00} 🦀\\n\", \"days\": 2}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
		reasoning: "Weather.", answer: "I look.", calls: []call{{"get_weather", "{\"city\": \"Köln \\\"x\\\" </tool_call> {\\ud83d\\ude00} 🦀\\n\", \"days\": 2}", ""}, {"now", "{}", ""}}},
	{name: "hermes, arguments first, text after", sign: qwenSign, text: `<tool_call>{"arguments": {"city": "A"}, "name": "get_weather"}</tool_call> Done.`, answer: "Done.", calls: []call{{"get_weather", `{"city": "A"}`, ""}}},
	{name: "hermes, arguments as a string, no arguments", sign: qwenSign, text: `<tool_call>{"name":"get_weather","arguments":"{\"days\": 1}"}</tool_call><tool_call>{"name":"now"}</tool_call>`, calls: []call{{"get_weather", `{"days": 1}`, ""}, {"now", `{}`, ""}}},
	{name: "hermes, a brace too many", sign: qwenSign, text: `<tool_call>{"name":"now","arguments":{"a":1}}}</tool_call>`, calls: []call{{"now", `{"a":1}`, ""}}},
	{name: "hermes, a brace missing", sign: qwenSign, text: `<tool_call>{"name":"now","arguments":{"a":[1</tool_call> x`, answer: "x", calls: []call{{"now", `{"a":[1]}`, ""}}},
	{name: "hermes, cut in an escape", sign: qwenSign, text: `<tool_call>{"name":"now","arguments":{"a":"\ud83d\ude`, calls: []call{{"now", `{"a":"\ufffd"}`, ""}}},
	{name: "hermes, not JSON", sign: qwenSign, text: "x <tool_call>\nnothing</tool_call>", answer: "x <tool_call>\nnothing</tool_call>"},
	{name: "hermes for a template without tools", sign: deepseekSign, hermes: true, text: `<tool_call>{"name":"now","arguments":{}}</tool_call>`, calls: []call{{"now", `{}`, ""}}},

	{name: "qwen3 coder", sign: coderSign, text: "Sure.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nNew \"York\"\n\n</parameter>\n<parameter=days>\n 3\n</parameter>\n<parameter=hourly>\nTrue\n</parameter>\n<parameter=note>\nnull\n</parameter>\n<parameter=tags>\n['a\"', \"b'\"]\n</parameter>\n<parameter=other>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
		answer: "Sure.", calls: []call{{"get_weather", `{"city": "New \"York\"\n", "days": 3, "hourly": true, "note": null, "tags": ["a\"", "b'"], "other": 1}`, ""}, {"now", "{}", ""}}},
	{name: "qwen3 coder, code as a value, no mark around it", sign: coderSign, text: "<function=write-file>\n<parameter=path>\na.html\n</parameter>\n<parameter=text>\n<p>\\n\t</para>\n</parameter>\n</function>",
		calls: []call{{"write-file", `{"path": "a.html", "text": "<p>\\n\t</para>"}`, ""}}},
	{name: "qwen3 coder, cut", sign: coderSign, text: "<tool_call>\n<function=write-file>\n<parameter=text>\nab\n</par", calls: []call{{"write-file", `{"text": "ab\n</par"}`, ""}}},

	{name: "glm 4.5", sign: glmSign, text: "\n<think>Weather.</think>\nOne moment.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Bonn</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n<arg_key>at</arg_key>\n<arg_value>{\"lat\": 1.5}</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
		reasoning: "Weather.", answer: "One moment.", calls: []call{{"get_weather", `{"city": "Bonn", "days": 2, "at": {"lat": 1.5}}`, ""}, {"now", "{}", ""}}},
	{name: "glm 4.7", sign: glmSign, inside: true, text: "W</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Bonn</arg_value></tool_call>", reasoning: "W", calls: []call{{"get_weather", `{"city": "Bonn"}`, ""}}},

	{name: "deepseek v3", sign: deepseekSign, text: "I call.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Ulm\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
		answer: "I call.", calls: []call{{"get_weather", `{"city": "Ulm"}`, ""}, {"now", "{}", ""}}},
	{name: "deepseek v3.1", sign: deepseekSign, inside: true, text: "Hm</think>Now:<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Ulm\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
		reasoning: "Hm", answer: "Now:", calls: []call{{"get_weather", `{"city": "Ulm"}`, ""}, {"now", "{}", ""}}},
	{name: "deepseek v3.2", sign: "<think>｜DSML｜", text: "<think>Hm</think>Go.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">12</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n<｜DSML｜parameter name=\"any\" string=\"false\">{\"a\": [1]}</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
		reasoning: "Hm", answer: "Go.", calls: []call{{"get_weather", `{"city": "12", "days": 2, "any": {"a": [1]}}`, ""}, {"now", "{}", ""}}},
	{name: "deepseek v4", sign: "<think>｜DSML｜", inside: true, text: "Hm</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>", reasoning: "Hm", calls: []call{{"now", "{}", ""}}},

	{name: "kimi k2", sign: kimiSign, text: "<think>W</think>Look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Beijing\"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
		reasoning: "W", answer: "Look.", calls: []call{{"get_weather", `{"city": "Beijing"}`, "functions.get_weather:0"}, {"now", "{}", "functions.now:1"}}},

	{name: "minimax m2", sign: minimaxSign, inside: true, text: "W\n</think>\n\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Rome</parameter>\n<parameter name=\"days\">2</parameter>\n<parameter name=\"tags\">[\"x\"]</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
		reasoning: "W", calls: []call{{"get_weather", `{"city": "Rome", "days": 2, "tags": ["x"]}`, ""}, {"now", "{}", ""}}},
	{name: "minimax m2, a border without a call", sign: minimaxSign, text: "a <minimax:tool_call> b", answer: "a <minimax:tool_call> b"},
	{name: "minimax m3", sign: "<mm:think>" + m3, text: "<mm:think>W</mm:think>" + m3 + "<tool_call>\n" + m3 + `<invoke name="get_weather">` + m3 + "<city>a <b> " + m3 + "</city>" + m3 + "<days>2" + m3 + "</days>" + m3 + "<tags>" + m3 + "<item>x" + m3 + "</item>" + m3 + "<item>7" + m3 + "</item>" + m3 + "</tags>" + m3 + "<at>" + m3 + "<lat>1.5" + m3 + "</lat>" + m3 + "<zip>07" + m3 + "</zip>" + m3 + "</at>" + m3 + "</invoke>\n" + m3 + "</tool_call>",
		reasoning: "W", calls: []call{{"get_weather", `{"city": "a <b> ", "days": 2, "tags": ["x", "7"], "at": {"lat": 1.5, "zip": "07"}}`, ""}}},

	{name: "gemma 4", sign: gemmaSign, text: "<|channel>thought\nW\n<channel|><|tool_call>call:get_weather{at:{name:<|\"|>a\"b{}<|\"|>,lat:1.5},city:<|\"|>Pa\\ris<|\"|>,hourly:true,tags:[<|\"|>x<|\"|>]}<tool_call|><|tool_call>call:now{}<tool_call|>",
		reasoning: "W", calls: []call{{"get_weather", `{"at":{"name":"a\"b{}","lat":1.5},"city":"Pa\\ris","hourly":true,"tags":["x"]}`, ""}, {"now", "{}", ""}}},

	{name: "mistral, a list", sign: mistralOpen, text: `[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Nice"}, "id": "abcdefghi"}, {"name": "now", "arguments": {}}]`, calls: []call{{"get_weather", `{"city": "Nice"}`, ""}, {"now", "{}", ""}}},
	{name: "mistral, named", sign: "[THINK]" + mistralOpen, text: `[THINK]W[/THINK]Ok.[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city": "Nice"}[TOOL_CALLS]now[ARGS]{}`, reasoning: "W", answer: "Ok.", calls: []call{{"get_weather", `{"city": "Nice"}`, "abcdefghi"}, {"now", "{}", ""}}},

	{name: "llama 3", sign: pythonTag, text: `{"name": "get_weather", "parameters": {"city": "Oslo"}}; {"name": "now", "parameters": {}}`, calls: []call{{"get_weather", `{"city": "Oslo"}`, ""}, {"now", "{}", ""}}},
	{name: "llama 3, marked", sign: pythonTag, text: `<|python_tag|>{"type": "function", "name": "now", "parameters": {}}`, calls: []call{{"now", "{}", ""}}},
	{name: "llama 3, JSON that is no call", sign: pythonTag, text: `{"name": "Ann", "parameters": {"a": 1}}`, answer: `{"name": "Ann", "parameters": {"a": 1}}`},

	{name: "gpt-oss", sign: harmonyChannel, text: "<|channel|>analysis<|message|>W<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"<|end\"}<|call|>",
		reasoning: "W", answer: "I look.", calls: []call{{"get_weather", `{"city": "<|end"}`, ""}}},
	{name: "gpt-oss, recipient first", sign: harmonyChannel, text: " to=functions.now<|channel|>commentary json<|message|>{}<|call|>", calls: []call{{"now", "{}", ""}}},
	{name: "gpt-oss, final", sign: harmonyChannel, text: "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|><|start|>assistant<|channel|>final<|message|>2 < 3 <|e", reasoning: "A\n\nB", answer: "2 < 3 <|e"},
	{name: "gpt-oss, no header", sign: harmonyChannel, text: "Hello <|end|>", answer: "Hello"},
}
