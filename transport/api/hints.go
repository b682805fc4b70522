package api

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"slices"
	"strings"
)

// A hint is a group of fields of the public API or of other servers that Krater accepts without
// effect: with any value if the field changes no text, or with the values that ask for what Krater
// does anyway. Another value is refused by name.
type hint struct {
	// names are separated by spaces. A field of the request is written alone, a nested one after
	// its place: stream_options., messages[]. or content[].
	names string
	// values are the accepted JSON values besides null, separated by " or ", or one of the words
	// any and boolean.
	values string
	// note says why, or what to use instead.
	note string
}

// hints are all of them. docs/http-api.md shows the table.
var hints = []hint{
	{"prompt_cache_retention prompt_cache_options content[].prompt_cache_breakpoint cache_prompt cache_control messages[].cache_control content[].cache_control keep_alive id_slot", "any", "Krater decides what stays in its caches"},
	{"stream_options.include_obfuscation stream_options.continuous_usage_stats", "boolean", "for chat and text completions the second has an effect"},
	{"request_id rid session_id", "any", "the header `X-Request-Id` names a request"},
	{"provider route usage", "any", "there is one provider"},
	{"inference_geo user_profile_id workspace_id diagnostics betas anthropic_version anthropic_beta", "any", "of the Anthropic API; the answer has the same text"},
	{"options.numa options.num_batch options.num_gpu options.main_gpu options.low_vram options.f16_kv options.logits_all options.vocab_only options.use_mmap options.use_mlock options.embedding_only options.num_thread options.num_keep options.penalize_newline options.mirostat_tau options.mirostat_eta", "any", "of the Ollama API; the answer has the same text"},
	{"options.mirostat", "0", "off"},
	{"options.typical_p options.tfs_z", "1", "off"},
	{"options.repeat_last_n", "-1", "penalties look at all of the context"},
	{"mcp_servers fallbacks", "[]", "not served"},
	{"timings_per_token return_progress stream_reasoning", "boolean", "the answer has the same text; streams of `/v1/chat/completions` and `/v1/responses` have the second"},
	{"include_reasoning separate_reasoning", "boolean", "for `/v1/chat/completions` only"},
	{"mirostat_tau mirostat_eta dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers xtc_threshold dynatemp_exponent early_stopping", "any", "they set up methods that are off"},
	{"mirostat top_a epsilon_cutoff eta_cutoff dynatemp_range dry_multiplier xtc_probability n_probs", "0", "off"},
	{"typical_p tfs_z length_penalty num_beams", "1", "off"},
	{"top_n_sigma", "-1 or 0", "off"},
	{"repeat_penalty", "1", "use `repetition_penalty`"},
	{"repeat_last_n penalty_last_n", "-1", "penalties look at all of the context"},
	{"n_predict", "-1", "use `max_tokens`"},
	{"best_of", "1", "for `/v1/completions` only"},
	{"echo add_special_tokens parse_special", "false", "for the raw text of `/v1/completions` only"},
	{"use_beam_search return_token_ids return_tokens_as_token_ids return_hidden_states return_full_text", "false", "off"},
	{"detokenize spaces_between_special_tokens", "true", "as the tokenizer says"},
	{"bad_words logits_processors transforms documents plugins models samplers lora", "[]", "off"},
	{"options vllm_xargs mm_processor_kwargs", "{}", "give each field at the top level"},
	{"guided_decoding_backend", "any", "there is one engine for grammars"},
	{"regex ebnf structural_tag allowed_token_ids", "", "use `structured_outputs`"},
	{"modalities", `["text"]`, "answers are text"},
	{"verbosity", `"medium"`, "the model decides"},
	{"function_call", `"none"`, "use `tools`"},
	{"functions", "", "use `tools`"},
	{"chat_template", "", "the model's own is used; `chat_template_kwargs` sets its variables"},
	{"num_ctx truncate_prompt_tokens", "", "a prompt is never cut"},
	{"audio prediction web_search_options moderation access_programs background_options context_management conversation image max_tool_calls container prompt prompt_embeds cache_salt kv_transfer_params", "", "not served"},
}

// checkHints judges the members of an object that its type has no field for. place is the prefix of
// their names in hints, param the object's place in the request.
func checkHints(place, param string, members jsontext.Value) *Error {
	if Absent(members) {
		return nil
	}
	d := jsontext.NewDecoder(bytes.NewReader(members))
	if _, err := d.ReadToken(); err != nil {
		return BadRequest(CodeInvalidJSON, param, "the request is not valid JSON")
	}
	for d.PeekKind() == '"' {
		token, err := d.ReadToken()
		if err != nil {
			return BadRequest(CodeInvalidJSON, param, "the request is not valid JSON")
		}
		name := token.String()
		value, err := d.ReadValue()
		if err != nil {
			return BadRequest(CodeInvalidJSON, param, "the request is not valid JSON")
		}
		if err := checkHint(place+name, joinParam(param, Clip(name)), value); err != nil {
			return err
		}
	}
	return nil
}

func checkHint(name, param string, value jsontext.Value) *Error {
	for i := range hints {
		h := &hints[i]
		switch {
		case !slices.Contains(strings.Fields(h.names), name):
			continue
		case h.takes(value):
			return nil
		case h.values == "":
			return Unsupported(param, "'%s' is not supported (%s)", param, h.note)
		}
		return Unsupported(param, "'%s' is supported with %s only (%s)", param, h.values, h.note)
	}
	return BadRequest(CodeUnknownField, param, "unknown field '%s'", param)
}

// takes reports whether a value is accepted; numbers are compared by value.
func (h *hint) takes(value jsontext.Value) bool {
	switch {
	case Absent(value) || h.values == "any":
		return true
	case h.values == "boolean":
		return value.Kind() == 't' || value.Kind() == 'f'
	}
	for want := range strings.SplitSeq(h.values, " or ") {
		var a, b float64
		if value.Kind() == '0' && json.Unmarshal(value, &a) == nil && json.Unmarshal([]byte(want), &b) == nil && a == b {
			return true
		}
		if string(compact(value)) == string(compact(jsontext.Value(want))) {
			return true
		}
	}
	return false
}

// CheckPartHints judges the members of a content part that its type has no field for.
func CheckPartHints(param string, members jsontext.Value) *Error {
	return checkHints("content[].", param, members)
}

// CheckHints judges the members of a request, or of its object param, that have no field.
func CheckHints(param string, members jsontext.Value) *Error {
	place := ""
	if param != "" {
		place = param + "."
	}
	return checkHints(place, param, members)
}

// HintNotes returns the accepted values of each field of the table, and why.
func HintNotes() map[string]string {
	out := map[string]string{}
	for i := range hints {
		h := &hints[i]
		values := h.values
		if values == "" {
			values = "null"
		}
		for name := range strings.FieldsSeq(h.names) {
			out[name] = values + ": " + h.note
		}
	}
	return out
}
