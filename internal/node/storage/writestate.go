package storage

import (
	"context"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/klauspost/compress/zlib"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// writeState implements write.State. Changes that are about to become visible are added to it.
type writeState struct {
	repo   *repo.Repo
	policy *repo.PushPolicy
	snap   *refs.Snapshot // without hidden refs
	done   func()         // ends the use of the repository's packs

	values  map[git.RefName]git.ObjectID // of refs after the added changes
	objects map[git.ObjectID]*write.Object
}

// newWriteState returns the state of a repository that is about to be changed. Its refs are those of the shadow in a
// store, and otherwise snap, or the present ones if that is nil.
func newWriteState(ctx context.Context, t receivepack.Target, snap *refs.Snapshot) (*writeState, error) {
	of := t.Repo
	if t.Shadow != nil {
		of, snap = t.Shadow.Repo(), nil
	}
	policy, err := of.PushPolicy()
	if err != nil {
		return nil, err
	}
	if snap == nil {
		if snap, err = of.Refs.Snapshot(ctx); err != nil {
			return nil, err
		}
	}
	done, err := t.Hold(ctx)
	if err != nil {
		return nil, err
	}
	return &writeState{repo: t.Repo, policy: policy, snap: snap, done: done,
		values: make(map[git.RefName]git.ObjectID), objects: make(map[git.ObjectID]*write.Object)}, nil
}

// Repo implements write.State.
func (s *writeState) Repo() *repo.Repo { return s.repo }

// Ref implements write.State.
func (s *writeState) Ref(name git.RefName) (git.ObjectID, error) {
	if id, ok := s.values[name]; ok || s.hides(name) {
		return id, nil
	}
	ref, _, err := s.snap.Lookup(name)
	return ref.ID, err
}

// hides reports whether a ref is hidden from clients that fetch or push.
func (s *writeState) hides(name git.RefName) bool { return s.snap.Hides(name) || s.policy.Hides(name) }

// Read implements write.State.
func (s *writeState) Read(id git.ObjectID, limit int64) (git.ObjectType, []byte, error) {
	o := s.objects[id]
	switch {
	case o == nil:
		return s.repo.Objects.Read(id, limit)
	case limit > 0 && o.Size > limit:
		return 0, nil, fault.New(fault.Invalid, "object %s is larger than %d bytes", id, limit)
	case o.Data != nil:
		return o.Type, o.Data, nil
	}
	z, err := zlib.NewReader(o.Stream())
	if err != nil {
		return 0, nil, err
	}
	data, err := io.ReadAll(z)
	return o.Type, data, err
}

// add adds a change that is about to become visible.
func (s *writeState) add(plan write.Plan) {
	for _, u := range plan.Updates {
		s.values[u.Ref] = u.New
	}
	for _, o := range plan.Objects {
		s.objects[o.ID] = o
	}
}

// check returns why the plan of a change cannot be made at all, or errNeedsGit if each update needs its own result.
func (s *writeState) check(ctx context.Context, plan write.Plan, c *write.Change) error {
	err := s.checkAll(plan)
	if err == nil {
		err = s.checkRules(ctx, plan, &c.Pusher.Rules)
	}
	if err != nil && len(plan.Updates) > 1 && !c.Atomic && !c.DryRun {
		return errNeedsGit
	}
	return err
}

// checkAll returns why a plan cannot be made as a whole.
func (s *writeState) checkAll(plan write.Plan) error {
	named := make(map[git.RefName]bool, len(plan.Updates))
	types := make(map[git.ObjectID]git.ObjectType, len(plan.Objects))
	for _, o := range plan.Objects {
		if s.repo.Objects.Purged(o.ID) {
			return receivepack.ErrPurged(o.ID)
		}
		types[o.ID] = o.Type
	}
	for _, u := range plan.Updates {
		switch {
		case named[u.Ref]:
			return fault.New(fault.Invalid, "%s: updated twice", fault.Short(u.Ref))
		case !strings.HasPrefix(string(u.Ref), "refs/"):
			return fault.New(fault.Invalid, "%s: want a full name such as refs/heads/main", fault.Short(u.Ref))
		case s.hides(u.Ref):
			return fault.New(fault.Denied, "%s: changes of hidden refs are not allowed", fault.Short(u.Ref))
		}
		named[u.Ref] = true
		if err := s.checkObject(u, types[u.New]); err != nil {
			return err
		}
	}
	for _, u := range plan.Updates {
		if u.New.IsZero() || !u.Old.IsZero() {
			continue
		}
		other, err := s.conflict(u.Ref, named)
		if err != nil {
			return err
		}
		if other != "" {
			return fault.New(fault.Precondition, "%s: conflicts with %s: a ref cannot be below another one",
				fault.Short(u.Ref), fault.Short(other))
		}
	}
	return nil
}

// checkRules returns an error if the rules of the caller do not permit a plan.
func (s *writeState) checkRules(ctx context.Context, plan write.Plan, rules *node.RefRules) error {
	if rules.IsZero() {
		return nil
	}
	updates := slices.Clone(plan.Updates)
	for i, u := range updates {
		if u.Old.IsZero() || u.New.IsZero() {
			continue
		}
		isForward, err := s.isForward(ctx, plan, u)
		if err != nil {
			return err
		}
		if isForward {
			updates[i].Kind = receivepack.FastForward
		}
	}
	return receivepack.CheckRules(rules, s.snap.Unhidden(), updates)
}

// isForward reports whether the history of the new commit of an update has the old one. The repository does not have
// the commits of the plan yet, nor those of changes that are about to become visible.
func (s *writeState) isForward(ctx context.Context, plan write.Plan, u receivepack.Update) (bool, error) {
	added := maps.Clone(s.objects)
	for _, o := range plan.Objects {
		added[o.ID] = o
	}
	seen := map[git.ObjectID]bool{u.New: true}
	var tips []git.ObjectID // in the repository
	for queue := []git.ObjectID{u.New}; len(queue) > 0; queue = queue[1:] {
		o := added[queue[0]]
		switch {
		case queue[0] == u.Old:
			return true, nil
		case o == nil:
			tips = append(tips, queue[0])
			continue
		case o.Type != git.Commit:
			continue
		}
		commit, err := pack.ParseCommit(o.Data, s.repo.Format)
		if err != nil {
			return false, err
		}
		for _, parent := range commit.Parents {
			if !seen[parent] {
				seen[parent] = true
				queue = append(queue, parent)
			}
		}
	}
	typ, _, err := s.repo.Objects.Header(u.Old)
	if err != nil || typ != git.Commit || len(tips) == 0 { // or the old one was added, and is not in the history
		if fault.Is(err, fault.NotFound) {
			err = nil
		}
		return false, err
	}
	shallow, err := s.repo.ShallowSet()
	if err != nil {
		return false, err
	}
	_, isUnreachable, err := s.repo.Graph.FirstUnreachable(ctx, tips, []git.ObjectID{u.Old}, shallow)
	return !isUnreachable && err == nil, err
}

// checkObject checks the object to which a ref is set. typ is its type if it is a new one.
func (s *writeState) checkObject(u receivepack.Update, typ git.ObjectType) (err error) {
	if u.New.IsZero() {
		return nil
	}
	if o := s.objects[u.New]; o != nil {
		typ = o.Type
	}
	if typ == 0 {
		if typ, _, err = s.repo.Objects.Header(u.New); err != nil {
			return err
		}
	}
	if typ != git.Commit && strings.HasPrefix(string(u.Ref), places.BranchPrefix) {
		return fault.New(fault.Invalid, "%s: %s is a %s, want a commit", fault.Short(u.Ref), u.New, typ)
	}
	return nil
}

// conflict returns a ref that is above a new one, or below it; "" if there is none. named are the refs that the same
// change names.
func (s *writeState) conflict(name git.RefName, named map[git.RefName]bool) (other git.RefName, err error) {
	for i, c := range name {
		if c != '/' {
			continue
		}
		if isUsed, err := s.exists(name[:i]); isUsed || err != nil || named[name[:i]] {
			return name[:i], err
		}
	}
	below := string(name) + "/"
	for changed, id := range s.values {
		if strings.HasPrefix(string(changed), below) && !id.IsZero() {
			return changed, nil
		}
	}
	return other, s.snap.Unhidden().Each(below, func(ref refs.Ref) error {
		if id, ok := s.values[ref.Name]; ok && id.IsZero() {
			return nil
		}
		other = ref.Name
		return refs.ErrStop
	})
}

// exists reports whether a ref exists, also if it is hidden.
func (s *writeState) exists(name git.RefName) (bool, error) {
	if id, ok := s.values[name]; ok {
		return !id.IsZero(), nil
	}
	_, ok, err := s.snap.Unhidden().Lookup(name)
	return ok, err
}
