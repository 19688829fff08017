package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

const (
	purgesPrefix  = "purges/"
	nodesPrefix   = "nodes/"
	purgeLook     = 500 * time.Millisecond // between two looks for confirmations
	keepTries     = 40                     // to remove local copies, before the next look for purges
	maxPurgeTries = 10
)

// purgeTimes are other ones in tests.
type purgeTimes struct {
	interval time.Duration // between two looks for purges
	wait     time.Duration // for nodes that have not confirmed a purge
}

// errPurgeAgain means that the repository was changed during a step of a purge, which is repeated.
var errPurgeAgain = fault.Retry(fault.Unavailable, fault.RetrySoon, "the repository changes too fast; try again")

// Purge implements places.Place. A record with other settings hides the objects. A push that was checked before fails,
// because the settings were changed, so no push can bring them back. Then a record replaces the packs that have the
// objects. All other files of the repository in the bucket are deleted with their versions, however young they are.
// Nodes find an object below purgesPrefix, remove their copies, and confirm that.
//
// Repositories that share packs, as forks or lenders, are purged together. Afterwards they share none. Removed ones
// whose packs they borrowed lose all files, and cannot be restored.
func (p *place) Purge(ctx context.Context, run places.RunGit, o places.PurgeOptions) (done places.Purged, err error) {
	members, removed, err := p.family(ctx)
	defer func() {
		for _, m := range members[1:] {
			m.Release()
		}
	}()
	if err != nil {
		return done, err
	}
	doomed := make([]map[git.ObjectID]bool, len(members))
	for i := range 2 * len(members) { // all are examined before the first one is changed
		m, o := members[i%len(members)], o
		if m != p || i > 0 { // it need not have the objects
			o.Known = o.IDs
		}
		if doomed[i%len(members)], err = m.hide(ctx, run, o, p, i >= len(members)); err != nil {
			return done, err
		}
	}
	var paths []git.RepoPath
	for _, m := range members {
		paths = append(paths, m.path)
	}
	o.Hidden(paths)
	for i, m := range members {
		if len(o.IDs) == 0 { // only LFS objects
			break
		}
		if err := m.replacePurged(ctx, run, doomed[i]); err != nil {
			return done, err
		}
		done.Objects = max(done.Objects, len(doomed[i]))
	}
	ids := removed
	for _, m := range members {
		ids = append(ids, m.id)
	}
	for _, id := range ids {
		if len(o.IDs) == 0 {
			break
		}
		if err := p.deletePurged(ctx, id, &done); err != nil {
			return done, err
		}
	}
	for _, m := range members {
		for _, id := range o.LFS {
			files, problem, err := lfsObjects{m}.Purge(ctx, id)
			if err != nil {
				return done, err
			}
			done.Files = append(done.Files, files...)
			if problem != "" {
				done.Problems = append(done.Problems, problem)
			}
		}
	}
	if err := p.awaitNodes(ctx, ids, &done); err != nil {
		return done, err
	}
	for _, m := range members {
		err := m.Configure(ctx, func(s places.Settings) error { delete(s, repo.PurgingKey); return nil })
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// family returns the repository and all that share packs with it, and the IDs of removed repositories whose packs they
// borrow. The caller releases the other members. A fork that has no record yet fails.
func (p *place) family(ctx context.Context) (members []*place, removed []string, err error) {
	members = []*place{p}
	head, err := p.current(ctx)
	if err != nil {
		return members, nil, err
	}
	all, known := []string{p.id}, map[string]*replog.Record{p.id: head.record}
	c := newCollector(p.store.bucket, GCOptions{Node: p.store.options.Node})
	for i := 0; i < len(all); i++ {
		head := known[all[i]]
		for _, id := range append(head.Lenders(), head.Forks...) {
			if known[id] != nil {
				continue
			}
			log := replog.Open(p.store.bucket, id)
			record, err := log.Head(ctx)
			if fault.Is(err, fault.NotFound) && slices.Contains(head.Forks, id) { // it is being made: end it
				if record, err = c.bury(ctx, log, false); record == nil && err == nil {
					err = fault.Retry(fault.Unavailable, fault.RetrySoon, "a fork is being made; try again")
				}
			}
			if err != nil {
				return members, removed, err
			}
			if !slices.Contains(head.Lenders(), id) && !slices.Contains(record.Lenders(), all[i]) {
				continue // they share nothing any more
			}
			all, known[id] = append(all, id), record
			if record.Deleted {
				removed = append(removed, id)
			} else if len(record.Names) > 0 {
				other, err := p.store.Acquire(ctx, record.Names[0])
				if err != nil {
					return members, removed, err
				}
				members = append(members, other.(*place))
			}
		}
	}
	return members, removed, nil
}

// survey opens a Survey of a state of the repository, with a copy of it that the caller closes.
func (p *place) survey(ctx context.Context, run places.RunGit, head *state) (*compaction, *places.Survey, error) {
	c, err := p.copyOf(ctx, head)
	if err != nil {
		return nil, nil, err
	}
	// Git fsck would complain about commits that were removed and are in an old commit-graph.
	if err := os.RemoveAll(c.path("objects/info/commit-graph")); err != nil {
		c.close()
		return nil, nil, places.WriteError(err)
	}
	s := &places.Survey{Repo: c.copied, Run: run}
	snap, err := s.Repo.Refs.SnapshotOf(ctx, nil)
	if err == nil {
		err = snap.Unhidden().Each("", func(ref refs.Ref) error {
			s.Tips = append(s.Tips, places.NamedTip{Name: string(ref.Name), ID: ref.ID})
			return nil
		})
	}
	if err != nil {
		c.close()
	}
	return c, s, err
}

// hide examines what has to be removed, and with isDone appends the record that hides it. asked is the repository that
// is purged.
func (p *place) hide(ctx context.Context, run places.RunGit, o places.PurgeOptions, asked *place, isDone bool) (
	doomed map[git.ObjectID]bool, err error) {
	for range maxPurgeTries {
		head, err := p.current(ctx)
		if err != nil {
			return nil, err
		}
		for _, s := range head.record.Config { // another node may have purged the objects
			if id, err := git.ParseObjectID(s.Value); err == nil && s.Key == repo.PurgedKey {
				o.Known = append(o.Known, id)
			}
		}
		c, s, err := p.survey(ctx, run, head)
		if err != nil {
			return nil, err
		}
		for i := range s.Tips {
			if p != asked {
				s.Tips[i].Name = p.path.String() + " " + s.Tips[i].Name
			}
		}
		doomed, err = s.Doomed(ctx, o)
		c.close()
		if err != nil || !isDone {
			return doomed, err
		}
		err = p.configure(ctx, func(now *state, s places.Settings) error {
			if now.record.Number != head.record.Number {
				return errPurgeAgain
			}
			return s.Purge(o, doomed)
		})
		if !errors.Is(err, errPurgeAgain) {
			return doomed, err
		}
	}
	return nil, errPurgeAgain
}

// replacePurged replaces the packs that have objects of a set, and copies borrowed ones.
func (p *place) replacePurged(ctx context.Context, run places.RunGit, doomed map[git.ObjectID]bool) error {
	for range maxPurgeTries {
		if err := p.compact(ctx, run, false, true); err != nil && !fault.Is(err, fault.Exists) { // it borrows no packs
			if fault.Is(err, fault.Unavailable) {
				continue
			}
			return err
		}
		head, err := p.current(ctx)
		if err != nil {
			return err
		}
		c, s, err := p.survey(ctx, run, head)
		if err != nil {
			return err
		}
		err = c.purge(ctx, s, doomed)
		c.close()
		if err != nil || c.won {
			return err
		}
	}
	return errPurgeAgain
}

// purge makes the packs of the copy again without some objects, and publishes them.
func (c *compaction) purge(ctx context.Context, s *places.Survey, doomed map[git.ObjectID]bool) error {
	if err := c.rewrite(ctx, s, doomed); err != nil {
		return err
	}
	if len(c.names)+len(c.removed) == 0 {
		c.won = true
		return nil
	}
	if err := c.upload(ctx); err != nil {
		return err
	}
	return c.publish(ctx)
}

// rewrite makes the packs of the copy again without some unreachable objects.
func (c *compaction) rewrite(ctx context.Context, s *places.Survey, doomed map[git.ObjectID]bool) error {
	c.isPruned = true
	run := func(g places.GitCommand) error { return s.Run(ctx, s.Repo, g) }
	if err := places.Rewrite(ctx, run, c.path("objects"), s.Repo.Format, doomed); err != nil {
		return err
	}
	if err := c.compare(); err != nil {
		return fault.Wrap(fault.Unavailable, "cannot read the new packs of the repository", err)
	}
	if len(c.names)+len(c.removed) == 0 {
		return nil
	}
	if err := os.RemoveAll(c.path("objects/tips")); err != nil {
		return places.WriteError(err)
	}
	graph := []string{"commit-graph", "write", "--reachable", "--changed-paths", "--no-progress"}
	return run(places.GitCommand{Args: graph})
}

// deletePurged deletes all files of a repository that its head does not name, and all old versions of its files.
func (p *place) deletePurged(ctx context.Context, id string, done *places.Purged) error {
	c := newCollector(p.store.options.Bucket, GCOptions{OlderThan: -time.Hour, Node: p.store.options.Node})
	if err := c.collect(ctx, id); err != nil {
		return err
	}
	done.Files = append(done.Files, c.report.Keys...)
	left, err := c.files(ctx, id)
	head, headErr := replog.Open(p.store.options.Bucket, id).Head(ctx)
	maps.DeleteFunc(left, func(key string, _ file) bool { return headErr == nil && head.HasKey(key) })
	if err != nil || len(left) > 0 {
		done.Problems = append(done.Problems, "the bucket has files of repository "+id+" that its head does not name: "+
			"another repository borrows them, or they are being uploaded; repeat the purge")
	}
	files, problem, err := deleteVersions(ctx, p.store.options.Bucket, reposPrefix+id+"/packs/")
	done.Files = append(done.Files, files...)
	if problem != "" {
		done.Problems = append(done.Problems, problem)
	}
	return err
}

// deleteVersions deletes all old versions of objects whose keys begin with prefix. problem is why some are left.
func deleteVersions(ctx context.Context, in bucket.Bucket, prefix string) (deleted []string, problem string,
	err error) {
	b, ok := in.(bucket.Versioned)
	if !ok {
		return nil, "", nil
	}
	versions, err := b.Versions(ctx, prefix)
	if err != nil {
		return nil, "the old versions of objects in the bucket cannot be listed: " + err.Error(), ctx.Err()
	}
	for _, v := range versions {
		if v.IsLatest && !v.IsMarker {
			continue
		}
		if err := b.DeleteVersion(ctx, v); err != nil {
			return deleted, "an old version in the bucket cannot be deleted: " + err.Error(), ctx.Err()
		}
		deleted = append(deleted, v.Key+" version "+v.ID)
	}
	return deleted, "", nil
}

// awaitNodes asks all nodes of the store to remove their copies, and waits for them.
func (p *place) awaitNodes(ctx context.Context, ids []string, done *places.Purged) error {
	var own []string
	for _, id := range ids {
		mark := id + "-" + replog.NewID()
		if err := p.store.bucket.Create(ctx, purgesPrefix+mark, nil); err != nil {
			return err
		}
		own = append(own, mark)
	}
	confirmed, err := p.store.confirmPurges(ctx) // of this node
	if err != nil && slices.ContainsFunc(own, func(mark string) bool { return !confirmed[mark] }) {
		return err
	}
	for until := time.Now().Add(p.store.purges.wait); ; {
		marks, err := readMarks(ctx, p.store.options.Bucket)
		if err != nil {
			return err
		}
		nodes, err := nodesOf(ctx, p.store.options.Bucket)
		if err != nil {
			return err
		}
		done.Nodes, done.Outstanding = nil, nil
		for _, node := range nodes {
			if slices.ContainsFunc(own, func(mark string) bool { return marks[mark] == nil || !marks[mark].nodes[node] }) {
				done.Outstanding = append(done.Outstanding, node)
			} else {
				done.Nodes = append(done.Nodes, node)
			}
		}
		if len(done.Outstanding) == 0 || time.Now().After(until) {
			return nil
		}
		if err := retry.Sleep(ctx, purgeLook); err != nil {
			return err
		}
	}
}

// purgeMark is a purge that nodes have to confirm, by an object with their name.
type purgeMark struct {
	keys     []string
	nodes    map[string]bool // that have confirmed it
	isMade   bool            // the object that they wait for exists
	modified time.Time       // of the newest object
}

// readMarks lists the marks of all purges.
func readMarks(ctx context.Context, b bucket.Bucket) (map[string]*purgeMark, error) {
	marks := make(map[string]*purgeMark)
	return marks, bucket.Each(ctx, b, purgesPrefix, func(info bucket.Info) error {
		name, node, isAnswer := strings.Cut(strings.TrimPrefix(info.Key, purgesPrefix), ".")
		m := marks[name]
		if m == nil {
			m = &purgeMark{nodes: make(map[string]bool)}
			marks[name] = m
		}
		m.keys = append(m.keys, info.Key)
		m.isMade = m.isMade || !isAnswer
		m.nodes[node] = isAnswer
		if info.Modified.After(m.modified) {
			m.modified = info.Modified
		}
		return nil
	})
}

// nodesOf lists the nodes of a store that confirm purges.
func nodesOf(ctx context.Context, b bucket.Bucket) (nodes []string, err error) {
	err = bucket.Each(ctx, b, nodesPrefix, func(info bucket.Info) error {
		nodes = append(nodes, strings.TrimPrefix(info.Key, nodesPrefix))
		return nil
	})
	return nodes, err
}

// marksAge is the age from which a mark that all nodes have confirmed is garbage: no purge waits for it.
const marksAge = 24 * time.Hour

// removeMarks removes the marks of purges that all nodes have confirmed.
func (c *collector) removeMarks(ctx context.Context) error {
	marks, err := readMarks(ctx, c.bucket)
	var nodes []string
	if err == nil && len(marks) > 0 {
		nodes, err = nodesOf(ctx, c.bucket)
	}
	for _, m := range marks {
		isOpen := slices.ContainsFunc(nodes, func(node string) bool { return m.isMade && !m.nodes[node] })
		if isOpen || time.Since(m.modified) < marksAge || err != nil {
			continue
		}
		c.report.Objects += len(m.keys)
		c.report.Keys = append(c.report.Keys, m.keys...)
		if !c.options.DryRun {
			err = c.bucket.Delete(ctx, m.keys...)
		}
	}
	return err
}

// OnPurge sets a function that is called when objects of a repository were purged. It removes other local copies. If it
// fails, it is called again. Call OnPurge before the Store is used.
func (s *Store) OnPurge(purged func(context.Context, git.RepoPath) error) { s.purged = purged }

// followPurges registers this node, and removes purged objects from it.
func (s *Store) followPurges() {
	isRegistered := false
	for {
		if s.refused() == nil && s.untested() == nil {
			if !isRegistered {
				err := s.options.Bucket.Create(s.ctx, nodesPrefix+s.options.Node, nil)
				isRegistered = err == nil || errors.Is(err, bucket.ErrExists)
			}
			if _, err := s.confirmPurges(s.ctx); err != nil && s.ctx.Err() == nil {
				s.log.Warn("cannot remove purged objects from this node", "error", err)
			}
		}
		if retry.Sleep(s.ctx, s.purges.interval) != nil {
			return
		}
	}
}

// confirmPurges removes the objects of purges that this node has not confirmed, and confirms them. It skips those that
// fail, and returns the first error.
func (s *Store) confirmPurges(ctx context.Context) (confirmed map[string]bool, err error) {
	marks, err := readMarks(ctx, s.options.Bucket)
	if err != nil {
		return nil, err
	}
	confirmed = make(map[string]bool)
	for mark, m := range marks {
		if confirmed[mark] = m.nodes[s.options.Node]; confirmed[mark] || !m.isMade {
			continue
		}
		id, _, _ := strings.Cut(mark, "-")
		isDone, failed := s.dropPurged(ctx, id)
		if isDone || fault.Is(failed, fault.NotFound) {
			failed = s.options.Bucket.Create(ctx, purgesPrefix+mark+"."+s.options.Node, nil)
			if errors.Is(failed, bucket.ErrExists) { // by another call
				failed = nil
			}
			confirmed[mark] = failed == nil
		}
		if failed != nil {
			err = cmp.Or(err, fmt.Errorf("purge of repository %s: %w", id, failed))
		}
	}
	return confirmed, err
}

// dropPurged brings this node to the head of a repository, and removes what that does not name. It reports whether all
// is gone.
func (s *Store) dropPurged(ctx context.Context, id string) (bool, error) {
	r := s.acquire(id)
	defer s.release(r)
	head, err := r.check().wait(ctx)
	if err != nil {
		return false, err
	}
	for _, setting := range head.record.Config {
		if lfsID, err := lfs.ParseOID(setting.Value); setting.Key == repo.PurgedLFSKey && err == nil {
			r.local.RemoveFile(lfsFile(lfsID))
			s.lfsSizes.Remove(lfsKey{id, lfsID})
		}
	}
	for _, path := range head.record.Names {
		if err := s.purged(ctx, path); err != nil {
			return false, err
		}
	}
	for range keepTries { // a download or a removal of files is running
		if s.cache.Keep(id, head.record) {
			return true, nil
		}
		if err := retry.Sleep(ctx, purgeLook/10); err != nil {
			return false, err
		}
	}
	return false, nil
}

// Copies implements places.Place. It also inflates all versions in the bucket.
func (p *place) Copies(ctx context.Context, run places.RunGit, o places.PurgeOptions, others []string) (x places.Search,
	err error) {
	head, err := p.current(ctx)
	if err != nil {
		return x, err
	}
	c, s, err := p.survey(ctx, run, head)
	if err != nil {
		return x, err
	}
	defer c.close()
	dir, err := p.local.TempDir()
	if err != nil {
		return x, err
	}
	defer os.RemoveAll(dir)
	empty, err := places.OpenSurvey(run, dir, s.Repo.Format, []string{c.path("objects")}, nil, nil)
	if err != nil {
		return x, err
	}
	defer empty.Repo.Close()
	for _, path := range append([]string{p.local.Dir()}, others...) {
		if err := x.Tree(ctx, empty, path, p.store.options.Cache.Root, o.IDs); err != nil {
			return x, places.WriteError(err)
		}
	}
	for _, id := range o.LFS {
		files, err := lfsObjects{p}.files(ctx, id)
		if err != nil {
			return x, err
		}
		for _, v := range files {
			x.Copies = append(x.Copies, v.Key+" version "+v.ID)
		}
	}
	prefix := reposPrefix + p.id + "/packs/"
	b, ok := p.store.options.Bucket.(bucket.Versioned)
	if !ok {
		return x, bucket.Each(ctx, p.store.options.Bucket, prefix, func(info bucket.Info) error {
			return x.Pack(ctx, empty, info.Key, o.IDs, func() (io.ReadCloser, error) {
				r, _, err := p.store.options.Bucket.Open(ctx, info.Key, 0, -1)
				return r, err
			})
		})
	}
	versions, err := b.Versions(ctx, prefix)
	for _, v := range versions {
		if err == nil && !v.IsMarker {
			err = x.Pack(ctx, empty, fmt.Sprintf("%s version %s", v.Key, v.ID), o.IDs, func() (io.ReadCloser, error) {
				return b.OpenVersion(ctx, v)
			})
		}
	}
	return x, err
}
