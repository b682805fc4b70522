// Package cluster is the commands of a cluster: several processes that serve one model together.
package cluster

import (
	"fmt"
	"time"

	"krater/cmd/krater/console"
	"krater/transport/certs"
)

// CertsCmd makes certificates.
type CertsCmd struct {
	Dir   string   `arg:"" help:"Folder for the files; made if it is not there." type:"path"`
	Names []string `arg:"" optional:"" help:"Names of members. Default: leader and worker, which all workers may share."`
	Days  int      `help:"Days until the members' certificates expire. The authority's expires after ten times as many." default:"730"`
}

// Run implements the command.
func (c *CertsCmd) Run(e *console.Env) error {
	if c.Days < 1 || c.Days > 36500 {
		return fmt.Errorf("--days %d: want 1 to 36500", c.Days)
	}
	if len(c.Names) == 0 {
		c.Names = []string{certs.Leader, certs.Worker}
	}
	made, err := certs.Make(c.Dir, c.Names, time.Duration(c.Days)*24*time.Hour)
	for _, f := range made {
		note := ""
		if f.Secret {
			note = "  (secret)"
		}
		fmt.Fprintf(e.Out, "%s%s\n", f.Path, note)
	}
	if err == nil && len(made) == 0 {
		fmt.Fprintf(e.Out, "%s has all of them already\n", c.Dir)
	}
	return err
}
