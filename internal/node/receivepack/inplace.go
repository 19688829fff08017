package receivepack

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/pushrecovery"
)

// inPlace is the destination of a push to a repository on this disk. Git changes its refs directly. The journal has the
// push while Git runs, and everything is synced before the report.
type inPlace struct {
	*pushSession
	directory fs.FileInfo // of the repository when Git was started
	journaled *pushrecovery.Push
}

// begin has Git sync objects before a ref names them, and refs before the report. The journal has to learn that an
// atomic push was accepted.
func (p *inPlace) begin(ctx context.Context, before *refs.Snapshot) (setup gitSetup, err error) {
	setup.config = [][2]string{{"core.fsync", "objects,derived-metadata,reference"}, {"core.fsyncMethod", "fsync"}}
	preReceive := filepath.Join(p.options.Scripts, scriptsOnce, string(repo.PreReceive))
	setup.hasScripts = p.isAtomic() && unix.Access(preReceive, unix.X_OK) == nil
	if p.directory, err = os.Stat(p.target.Common); err != nil {
		return setup, errRepositoryGone(err)
	}
	if p.record, err = p.newRecord(before); err != nil {
		return setup, err
	}
	if p.journaled, err = p.recovery.Begin(ctx, p.record, p.push.ID); err == nil {
		setup.files = p.journaled.Files()
	}
	return setup, err
}

// newRecord describes the push for the journal. Refs are listed by their own names, and symbolic ones also by their
// targets.
func (p *inPlace) newRecord(before *refs.Snapshot) (pushrecovery.Record, error) {
	updates := p.push.Updates
	r := pushrecovery.Record{
		GitDir: p.target.Dir, CommonDir: p.target.Common, Start: time.Now(),
		Refs: make(map[git.RefName]git.ObjectID, len(updates)),
	}
	for _, u := range updates {
		r.Refs[u.Ref] = u.New
		if target := before.TargetOf(u.Ref); target != "" {
			r.Refs[target] = u.New
		}
	}
	_, r.LocksHead = r.Refs[before.Head().Target]
	if !p.isAtomic() {
		return r, nil
	}
	r.Committer = p.author.environment()
	for _, setting := range p.target.HooksOff() {
		r.DisabledConfig = append(r.DisabledConfig, setting[0])
	}
	old := make(map[git.RefName]git.ObjectID, len(updates))
	for _, u := range updates {
		current, err := value(before, u.Ref)
		if err != nil || current != u.Old && !(current.IsZero() && u.Old.IsZero()) {
			return r, err // Git is going to refuse the push
		}
		old[u.Ref] = u.Old
	}
	r.Old = old
	return r, nil
}

// agreed notes in the journal that Git sets the refs of an atomic push next. An atomic push of which Git itself refused
// some updates must not be completed after a crash.
func (p *inPlace) agreed() error {
	if !p.journaled.IsAtomic() {
		return nil
	}
	if err := p.journaled.MarkAgreed(); err != nil {
		return fault.Wrap(fault.Unavailable, "push not accepted: cannot write to the server's state directory", err)
	}
	return nil
}

func (p *inPlace) ended(ctx context.Context, pid int, exited bool) {
	if pid != 0 && p.request.hasPack() {
		p.recovery.RemoveKeepFile(p.target.Common, pid, p.record.Start)
	}
	p.recovery.End(ctx, p.journaled, exited)
}

func (p *inPlace) apply(ctx context.Context, gitErr error) (updates []Update, isKnown bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalizeTimeout)
	defer cancel()
	if updates, err = p.changes(ctx, gitErr); err != nil {
		return nil, false, err
	}
	if len(updates) > 0 {
		err = p.persist(ctx, p.target, p.request.hasPack(), p.refNames(updates), nil)
	}
	return p.Classify(ctx, p.target, p.visible, p.withoutNoopDeletions(updates)), true, err
}

// changes returns the updates that were made: those in Git's report, or without a complete report those that the refs
// show.
func (p *inPlace) changes(ctx context.Context, gitErr error) ([]Update, error) {
	// Git does not notice this, because it works in the directory that it has open.
	if directory, err := os.Stat(p.target.Common); err != nil || !os.SameFile(directory, p.directory) {
		return nil, errRepositoryGone(err)
	}
	if gitErr == nil && p.report.complete {
		return p.reportedUpdates(), nil
	}
	after, err := p.target.Refs.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	var updates []Update
	for _, u := range p.push.Updates {
		old, err := value(p.before, u.Ref)
		if err != nil {
			return nil, err
		}
		current, err := value(after.Unhidden(), u.Ref)
		if err != nil {
			return nil, err
		}
		if old != current && (current == u.New || current.IsZero() && u.New.IsZero()) {
			updates = append(updates, u)
		}
	}
	return updates, nil
}

// withoutNoopDeletions removes deletions of refs that did not exist. Git reports them as done, but hooks and webhooks
// do not get them.
func (p *inPlace) withoutNoopDeletions(updates []Update) []Update {
	return slices.DeleteFunc(updates, func(u Update) bool {
		if !u.New.IsZero() {
			return false
		}
		_, existed, err := p.before.Lookup(u.Ref)
		if existed || err != nil {
			return false
		}
		// Git deletes a ref that another process has created meanwhile only if it has the old value.
		hasOld, err := false, error(nil)
		if !u.Old.IsZero() {
			hasOld, err = p.target.Objects.Has(u.Old)
		}
		return !hasOld && err == nil
	})
}

// persist syncs the directories that Git has changed. Git syncs only files, so that a pack or a ref could be lost in a
// power failure although its content is on disk. Objects come first, because a ref must not exist without its object.
// files has the refs that had a file before: then only the directory of the file has changed.
func (s *Server) persist(ctx context.Context, t Target, hasPack bool, names []git.RefName,
	files map[git.RefName]bool) error {
	common := t.Common
	var dirs []string
	seen := make(map[string]bool)
	add := func(dir string) {
		if !seen[dir] {
			seen[dir] = true
			dirs = append(dirs, dir)
		}
	}
	if hasPack {
		add(filepath.Join(common, "objects/pack"))
	}
	if tables := filepath.Join(common, "reftable"); isDir(tables) {
		add(tables)
	} else {
		for _, name := range names {
			for dir := filepath.Dir(filepath.Join(common, string(name))); len(dir) > len(common); dir = filepath.Dir(dir) {
				if seen[dir] {
					break
				}
				add(dir)
				if files[name] {
					break
				}
			}
		}
		if len(files) < len(names) {
			add(common) // packed-refs
		}
	}
	for _, dir := range dirs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.sync(dir); err != nil && !errors.Is(err, fs.ErrNotExist) { // Git removes a directory with its last ref
			return fault.Wrap(fault.Unavailable, "refs were changed, but can be lost in a power failure", err)
		}
	}
	return nil
}

// refNames returns the names of the refs that were changed, and of the targets of symbolic ones.
func (p *inPlace) refNames(updates []Update) []git.RefName {
	var names []git.RefName
	for _, u := range updates {
		names = append(names, u.Ref)
		if target := p.before.TargetOf(u.Ref); target != "" {
			names = append(names, target)
		}
	}
	return names
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func errRepositoryGone(err error) error {
	return fault.Wrap(fault.NotFound, "the repository was removed during the push", cmp.Or(err, fs.ErrNotExist))
}
