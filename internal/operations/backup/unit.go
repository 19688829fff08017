package backup

import (
	"cmp"
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// networkOf returns the path below the root of the network from which a repository borrows; empty if there is none.
func networkOf(root, dir string) string {
	alternates, err := pack.Alternates(filepath.Join(dir, "objects"))
	if err != nil || len(alternates) == 0 || !repo.IsNetwork(filepath.Clean(alternates[0])) {
		return ""
	}
	network, err := filepath.Rel(root, filepath.Dir(filepath.Clean(alternates[0])))
	if err != nil || !filepath.IsLocal(network) {
		return ""
	}
	return network
}

// source is what a unit is made of.
type source struct {
	place string
	dir   string
	only  []string // paths below dir; nil: all
	git   bool     // it is a repository
}

// unit makes the unit of a source, unless the backup has it. The error is fatal, or that of ctx.
func (b *run) unit(ctx context.Context, s source) error {
	b.Progress(b.done.Add(1), s.place)
	was, had := b.was.Units[s.place]
	l, err := readList(filepath.Join(b.Dir, s.place))
	was.IsBad = had && (err != nil || l.ID != was.ID || exists(filepath.Join(b.Dir, s.place, badName)))
	made, err := b.makeUnit(ctx, s, was)
	if ctx.Err() != nil || disk.IsFull(err) {
		return cmp.Or(ctx.Err(), err)
	}
	note := ""
	switch {
	case s.git && !exists(s.dir): // it was removed meanwhile
		return nil
	case err == nil:
	case had && was.Damage == "" && !was.IsBad:
		made, note = was, "; the backup keeps its copy of "+was.At.Format(time.RFC3339)
	case made.ID != "":
		made.Damage, made.Source, note = err.Error(), "", "; the backup has it as it is"
	case had:
		made, note = was, "; the copy in the backup is damaged"
	default:
		note = "; it is not in the backup"
	}
	b.use(made.Network)
	b.mu.Lock()
	defer b.mu.Unlock()
	if made.ID != "" {
		b.made.Units[s.place] = made
	}
	if err != nil {
		b.report.add(strings.TrimPrefix(s.place, rootPlace+"/"), "%v%s%s", err, note, membersOf(b.made.Units, s.place))
	}
	return nil
}

// membersOf names the repositories that borrow from the network at a place, for a message; empty if there are none.
func membersOf(units map[string]unit, place string) string {
	var members []string
	for member, u := range units {
		if u.Network != "" && filepath.Join(rootPlace, u.Network) == place {
			members = append(members, strings.TrimPrefix(member, rootPlace+"/"))
		}
	}
	if members == nil {
		return ""
	}
	slices.Sort(members)
	return "; these repositories need its objects: " + strings.Join(members, ", ")
}

// makeUnit makes a unit. If the source is damaged, it returns both the unit, as good as it can be, and the error.
func (b *run) makeUnit(ctx context.Context, s source, was unit) (unit, error) {
	looked := time.Now()
	if s.git {
		b.use(networkOf(b.Root, s.dir))
	}
	now, err := scan(s)
	if err != nil {
		return unit{}, err
	}
	if was.ID != "" && was.Source == now.sum && !was.IsBad {
		return was, nil
	}
	c := &copier{run: b, source: s, id: strings.ToLower(rand.Text())}
	c.to = filepath.Join(b.Dir, newName, c.id)
	c.find(was)
	if err := c.copy(ctx); err != nil {
		return unit{}, err
	}
	made := unit{ID: c.id, At: c.state.at.UTC(), Network: c.network}
	if c.state.newest.Settled(looked) { // any later change is a change of the state, too
		made.Source = c.state.sum
	}
	if made.List, err = c.writeList(); err != nil {
		return unit{}, err
	}
	if c.damage == nil && s.git {
		c.damage = checkTips(ctx, s.dir)
	}
	return made, c.damage
}

// checkTips returns an error if Git could not serve a repository: it does not open, or lacks the object of a ref.
func checkTips(ctx context.Context, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "reftable")); err == nil {
		return nil // only Git reads them
	}
	r, err := repo.Open(dir, repo.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	snap, err := r.Refs.Snapshot(ctx)
	if err != nil {
		return err
	}
	missing, err := r.MissingTips(snap, 1)
	if len(missing) > 0 {
		err = fault.New(fault.Corrupt, "the object %s of %s is missing", missing[0].ID, missing[0].Name)
	}
	return err
}
