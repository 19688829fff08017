// Package adminapi does the work of commands in a running process (AdminService). A process serves it with the control
// API on its admin socket. The socket has mode 0600, and every client that can connect may administer.
package adminapi

import (
	"context"
	"encoding/json"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/app"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/mirror"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node/gc"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/operations/watchdog"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// Service implements AdminService. Parts that the process does not have are nil. It is safe for concurrent use.
type Service struct {
	Router  *router.Router
	App     *app.Proxy
	Drain   time.Duration // maximum time that a drain waits for the requests of a worker
	Mirrors *mirror.Mirrors
	Origins func() []origin.Status
	Node    *storage.Node
	Dump    func(context.Context) (watchdog.Dump, error)
}

// Run does the work of one call.
func (s *Service) Run(ctx context.Context, request *connect.Request[internalv1.RunRequest],
	stream *connect.ServerStream[internalv1.RunResponse]) error {
	m, out := request.Msg, &output{stream: stream}
	result, err := s.run(ctx, m, out)
	if err != nil { // administrators may see the cause
		return fault.New(fault.KindOf(err), "%s", err)
	}
	text, err := json.Marshal(result)
	if err != nil {
		return err
	}
	return stream.Send(&internalv1.RunResponse{Result: text})
}

func (s *Service) run(ctx context.Context, m *internalv1.RunRequest, out *output) (any, error) {
	switch work := m.GetWork(); work {
	case internalv1.AdminWork_ADMIN_WORK_NODES, internalv1.AdminWork_ADMIN_WORK_DRAIN_NODE,
		internalv1.AdminWork_ADMIN_WORK_UNDRAIN_NODE:
		return s.nodes(work, m.GetName())
	case internalv1.AdminWork_ADMIN_WORK_WORKERS, internalv1.AdminWork_ADMIN_WORK_DRAIN_WORKER,
		internalv1.AdminWork_ADMIN_WORK_UNDRAIN_WORKER:
		return s.workers(work, m)
	case internalv1.AdminWork_ADMIN_WORK_ORIGINS:
		return s.Origins(), nil
	case internalv1.AdminWork_ADMIN_WORK_MIRRORS:
		if s.Mirrors == nil {
			return nil, errNoMirrors
		}
		return s.Mirrors.List(ctx, m.GetName())
	case internalv1.AdminWork_ADMIN_WORK_MIRROR_STATUS, internalv1.AdminWork_ADMIN_WORK_MIRROR_ADD,
		internalv1.AdminWork_ADMIN_WORK_MIRROR_REFRESH, internalv1.AdminWork_ADMIN_WORK_MIRROR_REMOVE,
		internalv1.AdminWork_ADMIN_WORK_MIRROR_DETACH:
		return s.mirror(ctx, work, m.GetName())
	case internalv1.AdminWork_ADMIN_WORK_LFS_REPOSITORIES, internalv1.AdminWork_ADMIN_WORK_LFS_OBJECTS,
		internalv1.AdminWork_ADMIN_WORK_LFS_GC, internalv1.AdminWork_ADMIN_WORK_LFS_VERIFY,
		internalv1.AdminWork_ADMIN_WORK_LFS_IMPORT:
		return s.lfs(ctx, m, out)
	case internalv1.AdminWork_ADMIN_WORK_DUMP:
		return s.Dump(ctx)
	default:
		return nil, fault.New(fault.Invalid, "unknown work %d: is the version of the server the same?", work)
	}
}

// NodeStatus is the state of a node.
type NodeStatus struct {
	router.Status
	Up   bool   `json:"up"`
	Down string `json:"down,omitempty"` // why it is unreachable
}

// State returns up, down, draining or drained.
func (n *NodeStatus) State() string {
	switch {
	case n.Draining && n.InFlight == 0:
		return "drained"
	case n.Draining:
		return "draining"
	case !n.Up:
		return "down"
	}
	return "up"
}

// nodes returns the states of all nodes, or drains or undrains one and returns its state.
func (s *Service) nodes(work internalv1.AdminWork, name string) (any, error) {
	if s.Router == nil {
		return nil, fault.New(fault.NotFound, "this server is not a gateway: it has no storage nodes")
	}
	err := error(nil)
	switch work {
	case internalv1.AdminWork_ADMIN_WORK_DRAIN_NODE:
		err = s.Router.Drain(name)
	case internalv1.AdminWork_ADMIN_WORK_UNDRAIN_NODE:
		err = s.Router.Undrain(name)
	}
	if err != nil {
		return nil, err
	}
	list := []NodeStatus{}
	for _, r := range s.Router.Status() {
		n := NodeStatus{Status: r, Up: r.Down == nil}
		if r.Down != nil {
			n.Down = r.Down.Error()
		}
		if work != internalv1.AdminWork_ADMIN_WORK_NODES && n.Name == name {
			return n, nil
		}
		list = append(list, n)
	}
	if work != internalv1.AdminWork_ADMIN_WORK_NODES {
		return nil, fault.New(fault.NotFound, "the node was removed meanwhile")
	}
	return list, nil
}

// WorkerStatus is the state of a worker of the application.
type WorkerStatus struct {
	app.WorkerState
	Seconds float64 `json:"seconds"`       // time since the last change of the state
	Drain   float64 `json:"drain_seconds"` // maximum time that a drain waits for running requests
}

func (s *Service) workerStatus(w app.WorkerState) WorkerStatus {
	return WorkerStatus{w, time.Since(w.Since).Seconds(), s.Drain.Seconds()}
}

// workers returns the states of all workers, or drains or undrains one and returns its state.
func (s *Service) workers(work internalv1.AdminWork, m *internalv1.RunRequest) (any, error) {
	if s.App == nil {
		return nil, fault.New(fault.NotFound,
			"there is no application: the configuration has neither app.workers nor [[app.pool]] tables")
	}
	if work == internalv1.AdminWork_ADMIN_WORK_WORKERS {
		list := []WorkerStatus{}
		for _, w := range s.App.Workers() {
			list = append(list, s.workerStatus(w))
		}
		return list, nil
	}
	var state app.WorkerState
	var err error
	if work == internalv1.AdminWork_ADMIN_WORK_DRAIN_WORKER {
		state, err = s.App.Drain(m.GetName(), m.GetForce())
	} else {
		state, err = s.App.Undrain(m.GetName())
	}
	return s.workerStatus(state), err
}

var errNoMirrors = fault.New(fault.NotFound,
	"this server has no mirrors: its configuration has no [[mirror]] table, or it is a gateway")

func (s *Service) mirror(ctx context.Context, work internalv1.AdminWork, name string) (any, error) {
	if s.Mirrors == nil {
		return nil, errNoMirrors
	}
	path, err := s.mirrorPath(name)
	if err != nil {
		return nil, err
	}
	switch work {
	case internalv1.AdminWork_ADMIN_WORK_MIRROR_ADD:
		return s.Mirrors.Add(ctx, path)
	case internalv1.AdminWork_ADMIN_WORK_MIRROR_REFRESH:
		return s.Mirrors.Refresh(ctx, path)
	}
	status, err := s.Mirrors.Status(ctx, path)
	if err != nil {
		return nil, err
	}
	switch work {
	case internalv1.AdminWork_ADMIN_WORK_MIRROR_REMOVE:
		err = s.Mirrors.Remove(ctx, path)
	case internalv1.AdminWork_ADMIN_WORK_MIRROR_DETACH:
		err = s.Mirrors.Detach(ctx, path)
	}
	return status, err
}

// mirrorPath returns the path of a mirror by that path or by the URL at the origin.
func (s *Service) mirrorPath(text string) (git.RepoPath, error) {
	if !strings.Contains(text, "://") {
		return parsePath(text)
	}
	u, err := url.Parse(text)
	if err != nil {
		return git.RepoPath{}, fault.Wrap(fault.Invalid, "invalid URL", err)
	}
	path, ok := s.Mirrors.PathOf(u)
	if !ok {
		return path, fault.New(fault.NotFound, "no [[mirror]] table covers %s", u.Redacted())
	}
	return path, nil
}

func parsePath(text string) (git.RepoPath, error) {
	path, err := git.ParseRepoPath(text)
	return path, fault.Wrap(fault.Invalid, "invalid path", err)
}

func (s *Service) lfs(ctx context.Context, m *internalv1.RunRequest, out *output) (any, error) {
	switch {
	case s.Node == nil:
		return nil, fault.New(fault.NotFound, "this server has no repositories")
	case s.Node.LFSObjects() == nil:
		return nil, fault.New(fault.NotFound, "Git LFS is not supported by this server: lfs.enabled is false")
	}
	var one *git.RepoPath // nil: all repositories
	if m.GetName() != "" || m.GetWork() == internalv1.AdminWork_ADMIN_WORK_LFS_OBJECTS ||
		m.GetWork() == internalv1.AdminWork_ADMIN_WORK_LFS_IMPORT {
		path, err := parsePath(m.GetName())
		if err != nil {
			return nil, err
		}
		one = &path
	}
	switch m.GetWork() {
	case internalv1.AdminWork_ADMIN_WORK_LFS_REPOSITORIES:
		return struct{}{}, s.Node.LFSKeeper().List(ctx, func(r gc.Repository) error { return out.item(r) })
	case internalv1.AdminWork_ADMIN_WORK_LFS_OBJECTS:
		return struct{}{}, s.Node.LFSKeeper().ListObjects(ctx, *one, func(o gc.Object) error { return out.item(o) })
	case internalv1.AdminWork_ADMIN_WORK_LFS_VERIFY:
		return s.Node.LFSKeeper().Verify(ctx, one, out.progress)
	case internalv1.AdminWork_ADMIN_WORK_LFS_IMPORT:
		if !filepath.IsAbs(m.GetDir()) {
			return nil, fault.New(fault.Invalid, "%q is not an absolute path", m.GetDir())
		}
		return s.Node.LFSKeeper().Import(ctx, *one, m.GetDir(), out.progress)
	}
	if m.GetGrace() != nil && m.GetGrace().AsDuration() <= 0 {
		return nil, fault.New(fault.Invalid, "%v is not a grace", m.GetGrace().AsDuration())
	}
	return s.Node.LFSKeeper().Collect(ctx, gc.CollectOptions{Path: one, DryRun: m.GetDryRun(),
		Grace: m.GetGrace().AsDuration(), Progress: out.progress,
		Removed: func(o gc.Removed) { _ = out.item(o) }}) // ctx ends if the client is gone
}

// output is the stream of a call. It is safe for concurrent use.
type output struct {
	mu     sync.Mutex
	stream *connect.ServerStream[internalv1.RunResponse]
	shown  time.Time // the last progress
}

func (o *output) item(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stream.Send(&internalv1.RunResponse{Item: text})
}

// progressInterval is the shortest time between two messages with progress.
const progressInterval = 100 * time.Millisecond

func (o *output) progress(done, total int64, what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Since(o.shown) < progressInterval {
		return
	}
	o.shown = time.Now()
	// ctx ends if the client is gone
	_ = o.stream.Send(&internalv1.RunResponse{Progress: &internalv1.AdminProgress{Done: done, Total: total, Step: what}})
}
