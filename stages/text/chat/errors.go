package chat

import "fmt"

// Error is why a conversation cannot become a prompt. It is the client's to mend.
type Error struct {
	Param   string // the place in the request: "messages[2].content[0].type"
	Message string
}

func (e *Error) Error() string { return e.Message }

func fail(param, format string, args ...any) *Error {
	return &Error{Param: param, Message: fmt.Sprintf(format, args...)}
}

// missing and wrong are the two commonest faults.
func missing(param string) *Error { return fail(param, "'%s' is required", param) }

func wrong(param, want string) *Error { return fail(param, "'%s' must be %s", param, want) }
