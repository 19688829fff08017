package roles

import (
	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/git/reaper"
)

// reaperProgram is the command that runs the reaper, if there is to be one.
func reaperProgram(c *config.Config, program string) []string {
	if !c.Git.Reaper || program == "" {
		return nil
	}
	format := c.Log.Format
	if format == "terminal" { // its few lines are as text
		format = "text"
	}
	return []string{program, reaper.Name, format}
}
