package storage

import (
	"cmp"
	"context"
	"sort"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// FindInvisible returns the first of some revisions that names an object by its ID which a client may not fetch, or the
// first with an error. It returns "" if there is none. Revisions that do not exist are not invisible, except IDs in a
// repository that borrows objects: another one could get the object before the call looks for it. reachable is
// Session.Reachable of the client.
func (n *Node) FindInvisible(ctx context.Context, path git.RepoPath, revisions []string, reachable bool) (string,
	error) {
	h, snap, _, err := n.snapshot(ctx, path)
	if err != nil {
		return "", err
	}
	defer n.release(h)
	if n.server == nil || n.server.AllowsAny(h.Repo, reachable) {
		return "", nil
	}
	done, err := h.Hold(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	resolver := n.lookups.Revisions(ctx, h.Repo, snap)
	var ids []git.ObjectID
	var named []string
	for _, revision := range revisions {
		found, err := resolver.Resolve(revision)
		switch {
		case fault.Is(err, fault.NotFound) && mayBeID(revision) && h.Repo.Objects.HasAlternates():
			return revision, nil
		case fault.Is(err, fault.NotFound), err == nil && found.Ref != "":
			continue
		case err != nil: // for example an abbreviation, which could mean one object here and another one in the call
			return revision, err
		}
		ids, named = append(ids, found.ID), append(named, revision)
	}
	areVisible := func(count int) (bool, error) { return n.server.Visible(ctx, h.Repo, n.walk(ctx, ""), ids[:count]...) }
	if len(ids) == 0 {
		return "", nil
	}
	if all, err := areVisible(len(ids)); err != nil || all {
		return "", err
	}
	first := sort.Search(len(ids)-1, func(i int) bool {
		visible, found := areVisible(i + 1)
		err = cmp.Or(err, found)
		return !visible
	})
	return named[first], err
}

// mayBeID reports whether a revision begins as an abbreviated ID does, and is not the ID of no object.
func mayBeID(revision string) bool {
	const minAbbreviation = 4
	rest := strings.TrimLeft(revision, "0123456789abcdef")
	return len(revision)-len(rest) >= minAbbreviation && strings.Trim(revision, "0") != ""
}
