// Package api holds what the front doors agree on: the wire types of the
// public HTTP routes, a strict JSON decoder, the error form, ids, the
// server-sent-event writer and the sampling fields every route accepts. It
// knows the engine's types and no transport.
package api
