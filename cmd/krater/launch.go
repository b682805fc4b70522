package main

import (
	"krater/cmd/krater/agents"
	"krater/cmd/krater/console"
)

type launchCmd struct {
	agents.Launch `embed:""`
}

// Run implements the command.
func (c *launchCmd) Run(e *console.Env) error {
	return c.Start(e, func() error {
		return (&setupCmd{Folders: c.Words, Save: c.Save, Listen: c.Listen}).Run(e)
	})
}
