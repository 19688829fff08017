package roles

import (
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
	"github.com/packhorse-git/packhorse/internal/node/webhook"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/transport/sidechannel"
)

// buildStorage builds a storage node for gateways in other processes.
func (s *server) buildStorage() error {
	// Rules and a hook are known if node and gateways have the same configuration file.
	s.lanes.reserveForKnown(sticky(s.cfg.Auth.KnowsCallers))
	if err := s.addNode(); err != nil {
		return err
	}
	s.followStore()
	s.addAdmin()
	return nil
}

// CloseLimit is the maximum time for git processes to end when no request reads from them. After closePatience they are
// killed.
const (
	CloseLimit    = 5 * time.Second
	closePatience = CloseLimit / 2
)

// addNode adds a storage node, and its port for gateways if it has one.
func (s *server) addNode() error {
	if err := s.addStore(); err != nil {
		return err
	}
	hooks, err := s.newWebhooks()
	if err != nil {
		return err
	}
	s.closers.push("repositories", func() error { // closes after the git processes that read from them
		if s.node == nil {
			return nil
		}
		return s.node.Close()
	})
	if s.packs, err = s.newPackSources(); err != nil {
		return err
	}
	runner := s.packs.runner
	pressure := admit.NewPressure(runner.Queue(packsource.ClassPack), runner.Queue(receivepack.ClassReceive))
	s.closers.push("measurement of CPU pressure", infallible(pressure.Close))
	if s.node, err = s.newNode(hooks); err != nil {
		return err
	}
	s.closers.push("background work of the node", infallible(s.node.StopBackground))
	if err := s.addNodeChecks(); err != nil {
		return err
	}
	if err := s.addMirrors(); err != nil {
		return err
	}
	completePushes(s.node, s.log)
	if hooks != nil {
		if err := startWebhooks(hooks, s.node); err != nil {
			return err
		}
	}
	if s.cfg.Storage.Listen == "" {
		return nil
	}
	return s.addNodePort()
}

// sessions returns the node that answers requests of Git and Git LFS.
func (s *server) sessions() router.Node {
	if s.mirrors != nil {
		return s.mirrors.Node()
	}
	return s.node
}

// newNode makes the node over the pack sources.
func (s *server) newNode(hooks *webhook.Hooks) (*storage.Node, error) {
	cfg, runner := s.cfg, s.packs.runner
	epoch, err := storage.NextEpoch(cfg.State)
	if err != nil {
		return nil, err
	}
	sessions := uploadpack.New(s.packs.source, uploadpack.Options{
		Agent: "packhorse/" + s.process.Version, Wants: uploadpack.Wants(cfg.Fetch.Wants), Warmup: s.newWarmup(), Log: s.log,
	})
	former := filepath.Join(cfg.State, "former-refs.json")
	if err := sessions.LoadFormer(former); err != nil {
		s.log.Warn("cannot read the former values of refs", "file", former, "error", err)
	}
	s.closers.push("former values of refs", func() error { return sessions.SaveFormer(former) })
	pushes, err := s.newPushes(hooks)
	if err != nil {
		return nil, err
	}
	o := storage.Options{
		Root: cfg.Root, Hidden: []string{cfg.State, cfg.Cache.Dir}, Policy: cfg.Fetch.Policy(), Log: s.log, Epoch: epoch,
		Pushes: pushes, Packs: s.packs.cache, Verifier: s.packs.verifier,
		LFS: s.lfsOptions(), LFSCare: cfg.LFSCare(), Runner: runner, Upkeep: cfg.Maintenance.Upkeep(),
		Tables:     repo.NewTables(runner),
		Registerer: s.reg,
		Lookups: lookup.Options{
			Memory: admit.NewBudget("objects",
				config.AtMost(lookup.DefaultMemory, cfg.MemoryShares().Server/4)),
		},
	}
	if s.store != nil {
		o.Places = s.store
	}
	return storage.New(sessions, o)
}

// lfsOptions returns the options of LFS objects, or nil if Git LFS is disabled.
func (s *server) lfsOptions() *objects.Options {
	o := s.cfg.LFS.Objects()
	if o != nil {
		if s.store != nil {
			o.MinFree = 0 // as the store
		}
		o.Registerer = s.reg
	}
	return o
}

// newWarmup returns nil if warm-up is disabled.
func (s *server) newWarmup() *uploadpack.Warmup {
	if !s.cfg.Warmup.Enabled {
		return nil
	}
	slots := s.packs.runner.Queue(packsource.ClassPack)
	return &uploadpack.Warmup{
		Registerer: s.reg,
		Idle:       func() bool { return slots.Queued() == 0 && slots.InUse() < slots.Size() },
		Crowded:    func() bool { return slots.Queued() > 0 },
	}
}

// newPushes returns nil if pushes are disabled.
func (s *server) newPushes(hooks *webhook.Hooks) (*receivepack.Server, error) {
	push := s.cfg.Push
	if !push.Enabled {
		return nil, nil
	}
	o := receivepack.Options{
		Runner: s.packs.runner, Agent: "packhorse/" + s.process.Version, Fsck: push.Fsck,
		MaxSize: int64(push.MaxSize), MaxMemory: int64(push.MaxMemory),
		Hooks: push.HooksDir, HookTime: push.HookTimeLimit.Duration, HooksConfig: push.HooksGitConfig,
		RepositoryHooks: push.HookPolicy(), MissingLFS: receivepack.LFSPolicy(s.cfg.LFS.RequireObjects),
		Scripts: filepath.Join(s.cfg.State, "hooks"), Journal: filepath.Join(s.cfg.State, "pushes"), Registerer: s.reg,
		Log: s.log,
	}
	if hooks != nil && hooks.Decides() {
		o.Decider = hooks
	}
	if hooks != nil && hooks.Delivers() {
		o.Recorder = hooks
	}
	return receivepack.New(o)
}

// addNodePort adds the port for gateways: the control API, and side channels for packs.
func (s *server) addNodePort() error {
	cfg, lanes := s.cfg.Storage, &s.lanes
	trust, err := cfg.LoadTrust(s.log)
	if err != nil {
		return err
	}
	channels := sidechannel.NewServer(sidechannel.Options{
		Pump: lanes.pump, Metrics: sidechannel.NewMetrics(s.reg), Log: s.log,
	})
	s.closers.push("side channels", channels.Close)
	o := s.controlOptions()
	o.Node, o.Channels, o.MaxRequest = s.node, channels, int64(s.cfg.HTTP.MaxBody)
	o.Sessions = s.sessions()
	if s.store != nil {
		o.Store = s.store
	}
	handler := s.addControl(o, trust)
	lanes.memory.Anonymous(config.AnonymousShare, handler.CallersKnown)
	lanes.metrics.Queue("search", handler.Slots())
	return nil
}

// sticky returns a function that returns true from the first time on that condition does.
func sticky(condition func() bool) func() bool {
	var met atomic.Bool
	return func() bool {
		if !met.Load() && condition() {
			met.Store(true)
		}
		return met.Load()
	}
}
