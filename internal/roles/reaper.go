package roles

import (
	"log/slog"

	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/git/reaper"
)

// reaperProgram returns the command that runs the reaper, or nil if none is to run.
func reaperProgram(c *config.Config, program string, log *slog.Logger) []string {
	if program == "" || c.Git.Reaper == config.ReaperOff {
		return nil
	}
	if c.Git.Reaper == config.ReaperAuto {
		if by := reaper.Needless(); by != "" {
			log.Debug("no reaper is needed", "ended_by", by)
			return nil
		}
	}
	format := c.Log.Format
	if format == "terminal" {
		format = "text"
	}
	return []string{program, reaper.Name, format}
}
