// Package api holds what the front doors share: wire types, a strict JSON decoder, errors, ids,
// sampling fields, the SSE writer, and limits that clients share. It knows the engine's types and
// no transport.
package api
