package event

import (
	"context"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// Repositories are what Recover compares interrupted changes with.
type Repositories interface {
	// RefValue returns the object ID of a ref. The zero ID means that the ref does not exist. The error is NotFound if the
	// repository does not exist.
	RefValue(ctx context.Context, repo git.RepoPath, ref git.RefName) (git.ObjectID, error)
	// Classify sets the kinds of updates that were made.
	Classify(ctx context.Context, repo git.RepoPath, updates []receivepack.Update) ([]receivepack.Update, error)
}

// Recover ends the changes that an earlier process began: it records the events of those that were made, as the
// repositories show. Call it before new changes. Changes with the IDs in active are not over. They, and those of
// repositories that cannot be read now, stay until the next start.
func (j *Journal) Recover(ctx context.Context, active []string, in Repositories) {
	begun := j.pending()
	var pushes []*receivepack.Push
	for i := range begun {
		if p, err := begun[i].Push(); err == nil && begun[i].Kind == Push {
			pushes = append(pushes, p)
		}
	}
	for i := range begun {
		e := &begun[i]
		if slices.Contains(active, e.ID) {
			j.o.Log.Warn("a push to an earlier server is still running; its event is recorded after the next start", "push",
				e.ID, "repository", string(e.Repository))
			continue
		}
		l, err := resolve(ctx, e, pushes, in)
		if err == nil {
			err = j.append(l)
		}
		if err != nil {
			j.o.Log.Error("cannot determine the result of an interrupted change; trying again after the next start", "id", e.ID,
				"repository", string(e.Repository), "error", err)
			continue
		}
		j.o.Log.Info("recovered an interrupted change", "id", e.ID, "kind", string(e.Kind), "repository",
			string(e.Repository), "made", l.Event != nil)
	}
}

// resolve returns the line that ends a change.
func resolve(ctx context.Context, e *Event, pushes []*receivepack.Push, in Repositories) (line, error) {
	not := line{End: e.ID}
	p, err := e.Push()
	if err != nil {
		return not, err
	}
	if e.Kind != Push {
		_, err := in.RefValue(ctx, p.Repo, git.HEAD)
		exists := err == nil
		if fault.Is(err, fault.NotFound) {
			err = nil
		}
		if err != nil || exists == (e.Kind == Delete) {
			return not, err
		}
		return line{Event: e}, nil
	}
	var made []receivepack.Update
	for _, u := range p.Updates {
		now, err := in.RefValue(ctx, p.Repo, u.Ref)
		if fault.Is(err, fault.NotFound) { // the repository itself
			return not, nil
		} else if err != nil {
			return not, err
		}
		if isResultOf(u, p.Repo, now, pushes) {
			made = append(made, u)
		}
	}
	if len(made) == 0 {
		return not, nil
	}
	if made, err = in.Classify(ctx, p.Repo, made); err != nil {
		return not, err
	}
	event := OfPush(p, made, e.Time)
	return line{Event: &event}, nil
}

// isResultOf reports whether the current value of a ref is the result of an update, directly or after later interrupted
// updates.
func isResultOf(u receivepack.Update, repo git.RepoPath, now git.ObjectID, begun []*receivepack.Push) bool {
	seen := map[git.ObjectID]bool{}
	for at := []git.ObjectID{u.New}; len(at) > 0; {
		id := at[0]
		if at = at[1:]; id == now || id.IsZero() && now.IsZero() {
			return true
		}
		if seen[id] {
			continue
		}
		seen[id] = true
		for _, p := range begun {
			for _, next := range p.Updates {
				if p.Repo == repo && next.Ref == u.Ref && next.Old == id {
					at = append(at, next.New)
				}
			}
		}
	}
	return false
}
