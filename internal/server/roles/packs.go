package roles

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/reaper"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/archive"
	"github.com/packhorse-git/packhorse/internal/node/ingest"
	"github.com/packhorse-git/packhorse/internal/node/inspect"
	"github.com/packhorse-git/packhorse/internal/node/merge"
	"github.com/packhorse-git/packhorse/internal/node/packcache"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/packsource/native"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/operations/observe"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// packSources has the sources of packs, each over the next one: the cache, the server itself, git pack-objects, and the
// runner of git.
type packSources struct {
	source   packsource.Source // the topmost source
	cache    *packcache.Cache  // nil if disabled
	verifier *pack.Verifier    // nil if disabled
	runner   *process.Runner
	archives *archive.Maker
}

// newPackSources makes the sources from the bottom up, and registers their closer. damaged is called with the
// incarnation of a repository with damaged packs.
func newPackSources(d *deps, damaged func(incarnation string)) (*packSources, error) {
	cfg := &d.cfg
	runner, err := process.New(process.Options{
		Git: cfg.Git.Program, Registerer: d.reg, Log: d.log, Reaper: reaperProgram(cfg, d.process.Program, d.log),
		Account: d.lanes.account(observe.PartGit), Classes: cfg.GitClasses(),
	})
	if err != nil {
		return nil, err
	}
	for lane, class := range map[string]process.Class{"cold": packsource.ClassPack, "push": receivepack.ClassReceive,
		"hooks": receivepack.ClassHook, "refs": repo.ClassRefs, "manage": places.ClassManage,
		"maintenance": places.ClassMaintain, "ingest": ingest.Class, "grep": storage.ClassGrep,
		"merge": merge.Class, "inspect": inspect.Class, "archive": archive.Class} {
		d.lanes.metrics.Queue(lane, runner.Queue(class))
	}
	p := &packSources{runner: runner}
	d.life.push("pack sources", p.close)
	if cfg.Fetch.VerifyPacks {
		p.verifier = pack.NewVerifier(d.log, d.reg)
	}
	fromGit, err := packsource.NewGit(runner, packsource.GitOptions{
		Scratch: filepath.Join(cfg.State, "scratch"), Threads: cfg.Git.ThreadsPerPack(),
		Memory: cfg.MemoryShares().Git, Machine: admit.Memory(),
		Verifier: p.verifier, Damaged: func(r packsource.Repository) {
			damaged(r.Incarnation)
			if p.cache != nil {
				p.cache.Drop(r.Incarnation, packcache.Damaged)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	p.source = fromGit
	p.archives = &archive.Maker{Runner: runner, GitDir: fromGit.EmptyDir, Temp: filepath.Join(cfg.State, "scratch")}
	setLibrary := func(packsource.Library) {}
	if cfg.Packs.Source != config.PacksByGit {
		own := native.New(native.Options{
			Git: fromGit, Always: cfg.Packs.Source == config.PacksByServer, Threads: cfg.Git.ThreadsPerPack(),
			Memory: cfg.MemoryShares().Git, Time: cfg.Git.TimeLimit.Duration, Registerer: d.reg, Log: d.log,
		})
		p.source, setLibrary = own, own.SetLibrary
	}
	p.source = packsource.Held(p.source)
	if !cfg.Cache.Enabled {
		return p, nil
	}
	p.cache, err = packcache.Open(p.source, packcache.Options{
		Dir: cfg.Cache.Dir, MaxBytes: int64(cfg.Cache.MaxBytes), Grace: orNever(cfg.Cache.Grace.Duration),
		Registerer: d.reg, Log: d.log,
	})
	if err != nil {
		return nil, err
	}
	p.source, p.archives.Cache = p.cache, p.cache
	setLibrary(p.cache)
	return p, nil
}

// orNever converts a duration of zero, which disables a feature in the configuration, to a negative one, which does so
// in packcache.Options.
func orNever(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// close ends the fills of the cache with their git processes, and then the verifications.
func (p *packSources) close() error {
	closeCache := func() error { return nil }
	if p.cache != nil {
		closeCache = p.cache.Close
	}
	err := closeBelow(closeCache, p.runner.Close, closePatience, CloseLimit)
	if p.verifier != nil {
		err = errors.Join(err, p.verifier.Close())
	}
	return err
}

// closeBelow closes the cache, which ends its fills and their git processes, and then the runner. After patience the
// runner kills the remaining processes. limit is the maximum time for both together.
func closeBelow(closeCache func() error, closeRunner func(context.Context) error, patience, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cache := make(chan error, 1)
	go func() { cache <- closeCache() }()
	patient := time.NewTimer(patience)
	defer patient.Stop()
	select {
	case err := <-cache:
		return errors.Join(err, closeRunner(ctx))
	case <-patient.C:
	}
	err := closeRunner(ctx)
	select {
	case cached := <-cache:
		return errors.Join(cached, err)
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("waiting for the pack cache to close: %w", ctx.Err()), err)
	}
}

// reaperProgram returns the command that runs the reaper, or nil if it is disabled or not needed.
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
