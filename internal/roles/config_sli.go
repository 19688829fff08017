package roles

import (
	"time"

	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/observe/sli"
)

// set judges by the configuration; nil does not.
func newSLI(c *config.SLIConfig) *sli.Set {
	if !c.Enabled {
		return nil
	}
	return sli.New(map[sli.Class]time.Duration{
		sli.Small: c.Small.Duration, sli.Hit: c.Hit.Duration, sli.Cold: c.Cold.Duration, sli.Push: c.Push.Duration, sli.Search: c.Search.Duration,
		sli.Page: c.Page.Duration, sli.Resolve: c.Resolve.Duration, sli.App: c.App.Duration, sli.Call: c.Call.Duration, sli.Heavy: c.Heavy.Duration,
	})
}
