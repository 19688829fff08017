package roles

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/remote"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node/control"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	"github.com/packhorse-git/packhorse/internal/node/merge"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/scratch"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
	"github.com/packhorse-git/packhorse/internal/node/webhook"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/store"
	"github.com/packhorse-git/packhorse/internal/transport/sidechannel"
)

// CloseLimit is the maximum time for git processes to end when no request reads from them. After closePatience they are
// killed.
const (
	CloseLimit    = 5 * time.Second
	closePatience = CloseLimit / 2
)

// nodeParts are the parts of a storage node.
type nodeParts struct {
	store   *store.Store   // nil: the repositories are those below the root
	journal *event.Journal // nil: the store has the events
	hooks   *webhook.Hooks // nil: pushes are disabled
	packs   *packSources
	node    *storage.Node
	mirrors *mirrors        // nil: there are none
	api     *control.Server // of control; nil without it
	control *port           // for gateways; nil without storage.listen
}

// newNodeParts makes the parts of a storage node from the bottom up.
func newNodeParts(d *deps) (*nodeParts, error) {
	n := &nodeParts{}
	var err error
	if n.store, err = newStore(d, n.evicted); err != nil {
		return nil, err
	}
	if n.store == nil {
		if n.journal, err = newJournal(d); err != nil {
			return nil, err
		}
	}
	if n.hooks, err = n.newWebhooks(d); err != nil {
		return nil, err
	}
	d.life.push("repositories", func() error { // closes after the git processes that read from them
		if n.node == nil {
			return nil
		}
		return n.node.Close()
	})
	if n.packs, err = newPackSources(d, n.checkCopy); err != nil {
		return nil, err
	}
	runner := n.packs.runner
	pressure := admit.NewPressure(runner.Queue(packsource.ClassPack), runner.Queue(receivepack.ClassReceive))
	d.life.push("measurement of CPU pressure", infallible(pressure.Close))
	if n.node, err = newNode(d, n.store, n.packs, n.hooks, n.journal); err != nil {
		return nil, err
	}
	d.life.push("background work of the node", infallible(n.node.StopBackground))
	if err := n.addChecks(d); err != nil {
		return nil, err
	}
	if n.mirrors, err = newMirrors(d, n.node); err != nil {
		return nil, err
	}
	completePushes(n.node, d.log)
	n.recoverEvents()
	if d.cfg.Storage.Listen != "" {
		n.control, err = n.newControl(d)
	}
	return n, err
}

// sessions returns the node that answers requests of Git and Git LFS.
func (n *nodeParts) sessions() router.Node {
	if n.mirrors != nil {
		return n.mirrors.Node()
	}
	return n.node
}

// calledNode is a node in the same process that also takes calls of its public API.
type calledNode struct {
	router.Node
	remote.Local
}

// called returns the node for the gateway in the same process.
func (n *nodeParts) called(d *deps) router.Node {
	if n.api == nil {
		n.api = control.New(n.controlOptions(d))
	}
	return calledNode{n.sessions(), remote.Local{Client: control.Local{Server: n.api}}}
}

// controlOptions returns the options of the node's control API.
func (n *nodeParts) controlOptions(d *deps) control.Options {
	o := controlOptions(d)
	o.Node, o.Sessions, o.MaxRequest = n.node, n.sessions(), int64(d.cfg.HTTP.MaxBody)
	o.Events, o.Webhooks, o.Access = n.events(), n.hooks, n.access(d)
	if n.store != nil {
		o.Store = n.store
	}
	return o
}

// access returns the service of the tokens and rules in the store.
func (n *nodeParts) access(d *deps) *auth.Service {
	if n.store == nil || !d.cfg.Auth.Shared {
		return &auth.Service{}
	}
	return &auth.Service{Access: auth.AccessInLog(n.store), Log: d.log}
}

// evicted closes the files of a repository whose packs were removed. No file is open before there is a node.
func (n *nodeParts) evicted(id string) {
	if n.node != nil {
		n.node.Evicted(id)
	}
}

// checkCopy lets a repository with damaged packs be copied again, if its packs are copies.
func (n *nodeParts) checkCopy(id string) {
	if n.store != nil {
		n.store.CheckCopy(id)
	}
}

// followStore lets watches and the search index notice changes that other nodes have made. It is called before the
// first request. index may be nil.
func (n *nodeParts) followStore(index *search.Engine) {
	if n.store == nil {
		return
	}
	n.store.OnPurge(n.node.Reopen)
	n.store.OnChange(func(path git.RepoPath) {
		n.node.CheckWatches(path)
		if index != nil {
			index.Touch(path)
		}
	})
}

// newNode makes the node over the pack sources.
func newNode(d *deps, stored *store.Store, packs *packSources, hooks *webhook.Hooks,
	journal *event.Journal) (*storage.Node, error) {
	cfg, runner := d.cfg, packs.runner
	epoch, err := storage.NextEpoch(cfg.State)
	if err != nil {
		return nil, err
	}
	sessions := uploadpack.New(packs.source, uploadpack.Options{
		Agent: "packhorse/" + d.process.Version, Wants: uploadpack.Wants(cfg.Fetch.Wants),
		Warmup: newWarmup(d, runner), Log: d.log,
	})
	former := filepath.Join(cfg.State, "former-refs.json")
	if err := sessions.LoadFormer(former); err != nil {
		d.log.Warn("cannot read the former values of refs", "file", former, "error", err)
	}
	d.life.push("former values of refs", func() error { return sessions.SaveFormer(former) })
	pushes, err := newPushes(d, runner, hooks, journal)
	if err != nil {
		return nil, err
	}
	o := storage.Options{
		Root: cfg.Root, Hidden: []string{cfg.State, cfg.Cache.Dir}, Policy: cfg.Fetch.Policy(), Log: d.log, Epoch: epoch,
		Pushes: pushes, Events: journal, Packs: packs.cache, Verifier: packs.verifier,
		Archives: packs.archives, Scratch: filepath.Join(cfg.State, "scratch"),
		LFS: lfsOptions(d, stored != nil), LFSSchedule: cfg.LFSSchedule(), Runner: runner,
		Maintenance: cfg.Maintenance.Options(), TipPack: cfg.Maintenance.TipPack && cfg.Packs.Source != config.PacksByGit,
		Tables:     repo.NewTables(runner),
		Registerer: d.reg,
		Lookups: lookup.Options{
			Memory: admit.NewBudget("objects",
				config.AtMost(lookup.DefaultMemory, cfg.MemoryShares().Server/4)),
		},
	}
	if stored != nil {
		o.Places = stored
	}
	if cfg.Push.SigningKey != "" {
		if o.Signer, err = edit.LoadSigner(cfg.Push.SigningKey); err != nil {
			return nil, fmt.Errorf("push.signing_key: %w", err)
		}
	}
	space, err := scratch.New(filepath.Join(cfg.State, "scratch", "calls")) // in that of packs, which begins empty
	if err != nil {
		return nil, err
	}
	o.Space = space
	o.Merger = merge.New(merge.Options{Runner: runner, Space: space})
	return storage.New(sessions, o)
}

// lfsOptions returns the options of LFS objects, or nil if Git LFS is disabled.
func lfsOptions(d *deps, isStored bool) *objects.Options {
	o := d.cfg.LFS.Objects()
	if o != nil {
		if isStored {
			o.Copies, o.MinFree = true, 0 // as the store
		}
		o.Registerer = d.reg
	}
	return o
}

// newWarmup returns nil if warm-up is disabled.
func newWarmup(d *deps, runner *process.Runner) *uploadpack.Warmup {
	if !d.cfg.Warmup.Enabled {
		return nil
	}
	slots := runner.Queue(packsource.ClassPack)
	return &uploadpack.Warmup{
		Registerer: d.reg,
		Idle:       func() bool { return slots.Queued() == 0 && slots.InUse() < slots.Size() },
		Crowded:    func() bool { return slots.Queued() > 0 },
	}
}

// newPushes returns nil if pushes are disabled.
func newPushes(d *deps, runner *process.Runner, hooks *webhook.Hooks,
	journal *event.Journal) (*receivepack.Server, error) {
	push := d.cfg.Push
	if !push.Enabled {
		return nil, nil
	}
	o := receivepack.Options{
		Runner: runner, Agent: "packhorse/" + d.process.Version, Fsck: push.Fsck,
		MaxSize: int64(push.MaxSize), MaxMemory: int64(push.MaxMemory),
		Hooks: push.HooksDir, HookTime: push.HookTimeLimit.Duration, HooksConfig: push.HooksGitConfig,
		RepositoryHooks: push.HookPolicy(), MissingLFS: receivepack.LFSPolicy(d.cfg.LFS.RequireObjects),
		Scripts: filepath.Join(d.cfg.State, "hooks"), Journal: filepath.Join(d.cfg.State, "pushes"), Registerer: d.reg,
		Log: d.log,
	}
	if hooks != nil && hooks.Decides() {
		o.Decider = hooks
	}
	if journal != nil {
		o.Recorder = journal
	}
	return receivepack.New(o)
}

// newControl makes the port for gateways: the control API, and side channels for packs.
func (n *nodeParts) newControl(d *deps) (*port, error) {
	trust, err := d.cfg.Storage.LoadTrust(d.log)
	if err != nil {
		return nil, err
	}
	channels := sidechannel.NewServer(sidechannel.Options{
		Pump: d.lanes.pump, Metrics: sidechannel.NewMetrics(d.reg), Log: d.log,
	})
	d.life.push("side channels", channels.Close)
	o := n.controlOptions(d)
	o.Channels = channels
	handler, port := newControl(d, o, trust)
	n.api = handler
	d.lanes.memory.Anonymous(config.AnonymousShare, handler.CallersKnown)
	d.lanes.metrics.Queue("search", handler.Slots())
	return port, nil
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
