package receivepack

import (
	"cmp"
	"context"
	"io"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// Kind is what an update does to its ref.
type Kind string

const (
	Created     Kind = "created"
	FastForward Kind = "fast-forward"
	Forced      Kind = "forced" // the old commit is not an ancestor of the new one, or one of them is not a commit
	Deleted     Kind = "deleted"
)

// maxKindWalk is the maximum number of commits that are visited in process to find out the kind of an update.
const maxKindWalk = 200_000

// classifier finds out the kinds of updates.
type classifier struct {
	server *Server
	target Target
	graph  *graph.Graph
	env    []string // of Git, to read the objects
}

// Classify returns updates with their kinds, where before has the refs without them. The repository has the new
// objects. Git decides if the history is too long.
func (s *Server) Classify(ctx context.Context, t Target, before *refs.Snapshot, updates []Update) []Update {
	return (&classifier{server: s, target: t, graph: t.Graph}).all(ctx, before, updates)
}

// classifyQuarantined is Classify for updates whose objects are in a quarantine; "": there are no new objects.
func (p *pushSession) classifyQuarantined(ctx context.Context, quarantine string, updates []Update) ([]Update, error) {
	c := &classifier{server: p.Server, target: p.target, graph: p.target.Graph}
	if quarantine != "" {
		objects := p.target.Objects.Dirs()[0]
		store, err := pack.Open(quarantine, pack.Options{Format: p.target.Format, Also: objects})
		if err != nil {
			return nil, err
		}
		defer store.Close()
		c.graph = graph.New(store, store.Dirs, graph.Options{Format: p.target.Format})
		c.env = process.ObjectsEnv(quarantine, objects)
	}
	return c.all(ctx, p.visible, updates), nil
}

func (c *classifier) all(ctx context.Context, before *refs.Snapshot, updates []Update) []Update {
	list := make([]Update, len(updates))
	isRefreshed := c.env != nil
	for i, u := range updates {
		u.Hidden = before.Hides(u.Ref)
		switch {
		case u.New.IsZero():
			u.Kind = Deleted
		case u.Old.IsZero():
			u.Kind = Created
		default:
			if !isRefreshed { // Git has added packs
				_ = c.target.Refresh() // objects that cannot be read are noticed below
				isRefreshed = true
			}
			if u.Kind = Forced; c.isAncestor(ctx, u.Old, u.New) {
				u.Kind = FastForward
			}
		}
		list[i] = u
	}
	return list
}

// isAncestor reports whether a commit is an ancestor of another one, which may be given by tags.
func (c *classifier) isAncestor(ctx context.Context, old, new git.ObjectID) bool {
	from, oldType, err := c.graph.Peel(old)
	to, newType, newErr := c.graph.Peel(new)
	if err = cmp.Or(err, newErr); err == nil && (oldType != git.Commit || newType != git.Commit) {
		return false
	}
	if err == nil {
		var grafts graph.Commits
		if grafts, err = c.target.ShallowSet(); err == nil {
			var ahead int
			if ahead, _, _, err = c.graph.AheadBehind(ctx, from, to, grafts, maxKindWalk); err == nil {
				return ahead == 0
			}
		}
	}
	exit, err := c.server.options.Runner.Read(ctx, process.Command{
		Class: ClassHook, Subcommand: "merge-base", Repository: c.target.Common, Env: c.env,
		Args: []string{"-c", "safe.directory=*", "--git-dir=" + c.target.Dir, "merge-base", "--is-ancestor",
			old.String(), new.String()},
	}, func(out io.Reader) error { _, err := io.Copy(io.Discard, out); return err })
	if err != nil && exit.Status != "exit 1" {
		c.server.log.Warn("cannot compare the values of a ref; the update counts as forced", "repository",
			c.target.Path.String(), "old", old.String(), "new", new.String(), "error", err)
	}
	return err == nil
}
