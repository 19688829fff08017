package roles

import (
	"context"
	"log/slog"

	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/git/cgroup"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/packsource"
	"github.com/packhorse-git/packhorse/internal/receivepack"
	"github.com/packhorse-git/packhorse/internal/repo"
	"github.com/packhorse-git/packhorse/internal/storage"
)

// openCgroups makes the groups. There are none, and nil, where there can be none.
func openCgroups(c *config.CgroupConfig, log *slog.Logger, metrics *cgroup.Metrics) *cgroup.Tree {
	if !c.Enabled {
		return nil
	}
	groups, wanted := make(map[string]cgroup.Limits), c.Wanted()
	for name, l := range c.Groups() {
		groups[name] = cgroup.Limits{MemoryHigh: int64(l.MemoryHigh), MemoryMax: int64(l.MemoryMax), CPUWeight: l.CPUWeight}
	}
	tree, err := cgroup.Open(cgroup.Options{Path: c.Path, Groups: groups, Metrics: metrics, Log: log, Wanted: wanted})
	if err != nil {
		level := slog.LevelDebug
		if wanted {
			level = slog.LevelWarn
		}
		log.Log(context.Background(), level, "there are no cgroups for git commands: rlimits and niceness stand in", "error", err)
		return nil
	}
	return tree
}

// commandGroups tells which classes of commands run in which group.
var commandGroups = map[process.Class]string{
	packsource.ClassPack: "pack", receivepack.ClassReceive: "receive", receivepack.ClassHook: "receive", storage.ClassMaintain: "maintenance",
	storage.ClassGrep: "search", repo.ClassRefs: "other", storage.ClassManage: "other",
}
