package chat

import (
	"fmt"
	"maps"
	"strings"

	"krater/stages/text/chat/template"
)

// traits describe how a template handles the parts of a conversation. They are found by rendering
// small conversations when the template is compiled, because a template does not describe itself.
// Render refuses what the template drops silently, and leaves to the template what it refuses with
// its own message.
type traits struct {
	forms     map[string]form // of content, by role
	dropped   map[string]bool // roles whose messages do not reach the prompt
	developer bool            // the template knows no developer, but a system role

	noTools      bool // tools do not reach the prompt
	noCalls      bool // tool calls do not reach the prompt
	argumentText bool // arguments must be a string of JSON
	none         bool // content may be none in an assistant message
	noSystem     bool // a system message does not reach the prompt
	apart        bool // a message with calls may have content or reasoning, not both
}

// called returns the role that the template gets for a role of the conversation.
func (t traits) called(role string) string {
	if role == "developer" && t.developer {
		return "system"
	}
	return role
}

// Words of the probes: no template writes them itself, and neither trimming nor a change of case
// affects them.
const (
	probeText  = "kq7text"
	probeOther = "kq7other"
	probeName  = "kq7name"
	probeKey   = "kq7key"
	probeValue = "kq7value"
	probeID    = "kq7id0001" // nine letters and digits, as some templates require
)

const probeSteps = 200_000

var (
	probeTools = fmt.Sprintf(`[{"type":"function","function":{"name":%q,"description":"d","parameters":`+
		`{"type":"object","properties":{%q:{"type":"string","description":"d"}},"required":[%q]}}}]`, probeName, probeKey, probeKey)
	probeObject = fmt.Sprintf(`{%q:%q}`, probeKey, probeValue)
	probeString = fmt.Sprintf("%q", probeObject)
	plainText   = fmt.Sprintf("%q", probeText)
	oneParts    = fmt.Sprintf(`[{"type":"text","text":%q}]`, probeText)
	twoParts    = fmt.Sprintf(`[{"type":"text","text":%q},{"type":"text","text":%q}]`, probeText, probeOther)
)

// probe finds the traits of a template.
func probe(t *Template) traits {
	r := traits{forms: map[string]form{}, dropped: map[string]bool{}}
	r.argumentText, r.noCalls = probeCalls(t)
	for _, role := range roles {
		r.forms[role], r.dropped[role] = probeRole(t, r, role)
	}
	shown := func(role string) bool { return probeShown(t, r, role, r.forms[role]) }
	if r.developer = !shown("developer") && shown("system"); r.developer {
		r.dropped["developer"] = false
	}
	r.noSystem = !shown("system")
	r.noTools = probeNoTools(t)
	r.apart = probeApart(t, r)
	r.none = probeNone(t, r)
	return r
}

// probeRender renders messages given as JSON; false where the template raises.
func probeRender(t *Template, messages, tools string) (string, bool) {
	vars := maps.Clone(t.fixed)
	vars["documents"] = template.None()
	vars["add_generation_prompt"] = template.NewBool(true)
	vars["tools"] = template.None()
	var err error
	if tools != "" {
		if vars["tools"], err = template.Decode([]byte(tools)); err != nil {
			return "", false
		}
	}
	if vars["messages"], err = template.Decode([]byte("[" + messages + "]")); err != nil {
		return "", false
	}
	s, err := t.run(vars, template.Config{Now: t.now, Steps: probeSteps, Output: 1 << 20})
	return s, err == nil
}

const (
	userTurn   = `{"role":"user","content":"u"}`
	answerTurn = `{"role":"assistant","content":"a"}`
)

// callTurn returns an assistant message with a tool call.
func callTurn(content, arguments string) string {
	return fmt.Sprintf(`{"role":"assistant","content":%s,"tool_calls":[{"id":%q,"type":"function","function":{"name":%q,"arguments":%s}}]}`,
		content, probeID, probeName, arguments)
}

// conversations are the places where a message with the role may be.
func conversations(role, content string, r traits) []string {
	m := fmt.Sprintf(`{"role":%q,"content":%s}`, role, content)
	arguments := probeObject
	if r.argumentText {
		arguments = probeString
	}
	switch role {
	case "system", "developer":
		return []string{m + "," + userTurn, m + "," + userTurn + "," + answerTurn + "," + userTurn}
	case "user":
		return []string{m, m + "," + answerTurn + "," + userTurn}
	case "assistant":
		return []string{userTurn + "," + m + "," + userTurn, userTurn + "," + m}
	}
	m = fmt.Sprintf(`{"role":%q,"tool_call_id":%q,"name":%q,"content":%s}`, role, probeID, probeName, content)
	call := userTurn + "," + callTurn(`""`, arguments) + "," + m
	return []string{call, call + "," + answerTurn + "," + userTurn, userTurn + "," + answerTurn + "," + m}
}

// attempts returns the renders of a role's content in all its places, with and without tools, that
// do not raise.
func attempts(t *Template, r traits, role, content string) []string {
	var out []string
	for _, c := range conversations(role, content, r) {
		for _, tools := range []string{"", probeTools} {
			if s, ok := probeRender(t, c, tools); ok {
				out = append(out, s)
			}
		}
	}
	return out
}

func anyShows(texts []string, words ...string) bool {
	for _, s := range texts {
		at := 0
		for _, w := range words {
			i := strings.Index(s[at:], w)
			if i < 0 {
				at = -1
				break
			}
			at += i + len(w)
		}
		if at >= 0 {
			return true
		}
	}
	return false
}

// probeRole finds the form of a role's content, and whether the template drops the role's messages:
// some render succeeds, and none shows the content.
func probeRole(t *Template, r traits, role string) (form, bool) {
	text, one := attempts(t, r, role, plainText), attempts(t, r, role, oneParts)
	shown := anyShows(text, probeText)
	switch {
	case !shown && anyShows(one, probeText):
		return formParts, false
	case !shown:
		return formText, len(text) > 0
	case len(one) != len(text):
		return formText, false
	}
	// Parts are handled if one part makes the very prompt that the string makes, and two parts show
	// both, in order.
	for i := range text {
		if text[i] != one[i] {
			return formText, false
		}
	}
	two := attempts(t, r, role, twoParts)
	if !anyShows(two, probeText, probeOther) || anyShows(two, "'text'") || anyShows(two, `"text"`) {
		return formText, false
	}
	return formBoth, false
}

// probeShown reports whether a role's content reaches the prompt.
func probeShown(t *Template, r traits, role string, f form) bool {
	content := plainText
	if f == formParts {
		content = oneParts
	}
	return anyShows(attempts(t, r, role, content), probeText)
}

// probeCalls finds what the arguments of tool calls must be, and whether calls are dropped. An
// object that is printed as Python prints dicts is not handled.
func probeCalls(t *Template) (text, dropped bool) {
	try := func(arguments string) (shown, quoted, rendered bool) {
		for _, content := range []string{`""`, "null", `"c"`} {
			for _, tools := range []string{probeTools, ""} {
				for _, after := range []string{"", `,{"role":"tool","tool_call_id":"` + probeID + `","name":"` + probeName + `","content":"r"}`} {
					s, ok := probeRender(t, userTurn+","+callTurn(content, arguments)+after, tools)
					rendered = rendered || ok
					shown = shown || ok && strings.Contains(s, probeValue)
					quoted = quoted || ok && (strings.Contains(s, "'"+probeKey+"'") || strings.Contains(s, `\"`+probeKey))
				}
			}
		}
		return shown, quoted, rendered
	}
	shown, quoted, rendered := try(probeObject)
	if shown && !quoted {
		return false, false
	}
	shownText, quotedText, renderedText := try(probeString)
	if shownText && !quotedText {
		return true, false
	}
	return false, !shown && !shownText && (rendered || renderedText)
}

// probeNoTools reports whether tools reach no prompt although it renders.
func probeNoTools(t *Template) bool {
	rendered := false
	for _, c := range []string{userTurn, `{"role":"system","content":"s"},` + userTurn} {
		s, ok := probeRender(t, c, probeTools)
		if strings.Contains(s, probeName) {
			return false
		}
		rendered = rendered || ok
	}
	return rendered
}

// probeNone reports whether the content of an assistant message may be none: the prompt must
// neither raise, nor say None where "" would give nothing.
func probeNone(t *Template, r traits) bool {
	arguments := probeObject
	if r.argumentText {
		arguments = probeString
	}
	for _, m := range []string{callTurn("%s", arguments), `{"role":"assistant","content":%s}`} {
		for _, tools := range []string{"", probeTools} {
			c := userTurn + "," + m + "," + userTurn
			none, ok := probeRender(t, fmt.Sprintf(c, "null"), tools)
			empty, okEmpty := probeRender(t, fmt.Sprintf(c, `""`), tools)
			if okEmpty && (!ok || strings.Count(none, "None") > strings.Count(empty, "None")) {
				return false
			}
		}
	}
	return true
}

// probeApart reports whether the template refuses an assistant message with calls, content and
// reasoning that it takes without the reasoning.
func probeApart(t *Template, r traits) bool {
	arguments := probeObject
	if r.argumentText {
		arguments = probeString
	}
	m := callTurn(`"c"`, arguments)
	_, ok := probeRender(t, userTurn+","+m, probeTools)
	if !ok {
		return false
	}
	_, both := probeRender(t, userTurn+`,{"reasoning_content":"r","reasoning":"r","thinking":"r",`+m[1:], probeTools)
	return !both
}
