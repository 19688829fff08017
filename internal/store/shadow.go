package store

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

const (
	// shadowsDir has the shadows of running pushes, below the root of the local copies: packs are moved between both.
	shadowsDir = ".packhorse/shadows"
	// maxCopiedRefs is the maximum size in bytes of a base that is copied into packed-refs with the changes: one file is
	// written faster than many.
	maxCopiedRefs = 1 << 20
)

// shadow is the temporary repository in which Git runs a push. It is not safe for concurrent use, except for
// Quarantined.
//
//	HEAD, config             of the local copy
//	packed-refs              all refs, or if they are many the base: a hard link
//	refs/                    in the second case, the changes after the base
//	objects/info/alternates  the objects of the local copy, and those that it borrows
//	base/                    those objects, if some were removed from the repository before: hard links of the packs of
//	                         the base. The local copy may still have the objects, for running requests
//
// A change that deletes a ref of the base cannot be shown as a file. Then packed-refs has all refs in any case.
type shadow struct {
	*place
	base *state // the refs that it shows
	dir  string
	repo *repo.Repo

	uploading sync.Mutex // held while uploads begin: Quarantined is called while Git runs
	uploads   []*packUpload

	ctx    context.Context // of the uploads; ends with Close
	cancel context.CancelFunc
	done   func() // ends the use of the packs
}

// openShadows removes the shadows of an earlier process in the background.
func (s *Store) openShadows() error {
	dir := filepath.Join(s.options.Cache.Root, shadowsDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	var paths []string
	for _, e := range entries {
		paths = append(paths, filepath.Join(dir, e.Name()))
	}
	if err := s.cache.Discard(paths...); err != nil {
		s.log.Warn("cannot remove the temporary repository of a push", "dir", dir, "error", err)
	}
	return err
}

// Push implements places.Place. It makes a freshness check unless the last one is within Options.MaxStaleness. The
// client may have its refs and objects from another node, and Git would refuse the push if they were newer than the
// shadow. The error is Unavailable if the store cannot be reached or the disk has no room. So clients do not send a
// pack for nothing.
func (p *place) Push(ctx context.Context) (receivepack.Shadow, error) {
	if err := cmp.Or(p.mayAppend(), p.store.Ready()); err != nil {
		return nil, err
	}
	p.store.events.prepare(p.repository)
	s, err := p.beginPush(ctx)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (p *place) beginPush(ctx context.Context) (*shadow, error) {
	known := p.known()
	if known != nil && p.age() <= p.store.options.MaxStaleness {
		return p.shadow(ctx, known)
	}
	check := p.check()
	var s *shadow
	if known.has(p.path) && p.local.Complete(known.record) { // most likely, this state is still the latest
		var err error
		if s, err = p.shadow(ctx, known); err != nil {
			return nil, err
		}
	}
	base, err := check.wait(ctx)
	if err == nil {
		err = p.mayAppend() // the check may have found that the store broke a promise
	}
	if err == nil && s != nil && s.base == base {
		return s, nil
	}
	if s != nil {
		s.Close()
	}
	if err != nil {
		return nil, err
	}
	return p.shadow(ctx, base)
}

// shadow makes the shadow of a push that begins at a state.
func (p *place) shadow(ctx context.Context, base *state) (*shadow, error) {
	if !base.has(p.path) {
		p.store.forget(p.path, p.id)
		return nil, notFound(p.path)
	}
	base, done, err := p.useState(ctx, base, nil)
	if err != nil {
		return nil, err
	}
	if err := p.store.cache.MakeRoom(); err != nil {
		done()
		return nil, err
	}
	s := &shadow{place: p, base: base, done: done}
	s.ctx, s.cancel = context.WithCancel(p.store.ctx)
	if err := s.make(); err != nil {
		s.Close()
		if _, isFault := errors.AsType[*fault.Error](err); !isFault {
			err = fault.Wrap(fault.Unavailable, "push not accepted: cannot write to the server's disk", err)
		}
		return nil, err
	}
	return s, nil
}

// make makes the directory and opens it.
func (s *shadow) make() (err error) {
	if s.dir, err = os.MkdirTemp(filepath.Join(s.store.options.Cache.Root, shadowsDir), "push-"); err != nil {
		return err
	}
	for _, dir := range []string{"objects/info", "objects/pack", "refs"} {
		if err := os.MkdirAll(filepath.Join(s.dir, dir), 0o777); err != nil {
			return err
		}
	}
	local := s.local.Dir()
	lenders := append([]string{filepath.Join(local, "objects")}, s.local.Lenders(s.base.record)...)
	if s.base.record.ObjectsEpoch > 0 {
		if lenders, err = linkObjects(s.local, s.path("base"), s.base.record); err != nil {
			return err
		}
	}
	err = cmp.Or(
		os.Link(filepath.Join(local, "config"), s.path("config")),
		os.WriteFile(s.path("HEAD"), []byte("ref: "+string(s.base.layers.Head)+"\n"), 0o666),
		os.WriteFile(s.path("objects/info/alternates"), []byte(strings.Join(lenders, "\n")+"\n"), 0o666),
		s.writeRefs(),
	)
	if err != nil {
		return err
	}
	s.repo, err = repo.Open(s.dir, repo.Options{Place: fixedPlace{fixedRefs{s.base.layers}, s.id}})
	return err
}

// path returns the path of a file of the shadow.
func (s *shadow) path(name string) string { return filepath.Join(s.dir, name) }

// writeRefs writes the refs of the base.
func (s *shadow) writeRefs() error {
	layers := s.base.layers
	isOneFile := s.base.record.Refs.Bytes <= maxCopiedRefs
	if !isOneFile {
		var err error
		if isOneFile, err = hidesBase(layers, s.base.record.ObjectFormat); err != nil {
			return err
		}
	}
	if isOneFile {
		return writePacked(s.path("packed-refs"), layers)
	}
	// The file is removed after two newer checkpoints. Then all refs are written.
	err := os.Link(s.local.Base(s.base.record), s.path("packed-refs"))
	if errors.Is(err, fs.ErrNotExist) {
		return writePacked(s.path("packed-refs"), layers)
	}
	made := ""
	for _, ref := range layers.Changes {
		if err != nil {
			return err
		}
		if ref.ID.IsZero() {
			continue
		}
		path := s.path(string(ref.Name))
		if dir := filepath.Dir(path); dir != made {
			if err := os.MkdirAll(dir, 0o777); err != nil {
				return err
			}
			made = dir
		}
		err = os.WriteFile(path, []byte(ref.ID.String()+"\n"), 0o666)
	}
	return err
}

// hidesBase reports whether a change deletes a ref of the base.
func hidesBase(layers *refs.Layers, format git.ObjectFormat) (bool, error) {
	isDeletion := func(ref refs.Ref) bool { return ref.ID.IsZero() }
	if layers.Base == nil || !slices.ContainsFunc(layers.Changes, isDeletion) {
		return false, nil
	}
	base, err := snapshotOf(&refs.Layers{Number: layers.Number, Head: layers.Head, Base: layers.Base}, format)
	if err != nil {
		return false, err
	}
	for _, ref := range layers.Changes {
		if ref.ID.IsZero() {
			if _, exists, err := base.Lookup(ref.Name); exists || err != nil {
				return exists, err
			}
		}
	}
	return false, nil
}

// writePacked writes a packed-refs file with all refs.
func writePacked(path string, layers *refs.Layers) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b := bufio.NewWriterSize(f, 64<<10)
	if _, err := refs.WritePacked(b, layers.Base, layers.Changes); err != nil {
		return err
	}
	return cmp.Or(b.Flush(), f.Close())
}

// fixedRefs is a refs.Source whose refs do not change.
type fixedRefs struct{ layers *refs.Layers }

func (f fixedRefs) Layers(context.Context) (*refs.Layers, error) { return f.layers, nil }
func (f fixedRefs) Known() *refs.Layers                          { return f.layers }

// fixedPlace is a repo.Place for the refs and objects that a shadow has. Its refs are known without reading files.
type fixedPlace struct {
	fixedRefs
	id string
}

func (f fixedPlace) ID() string { return f.id }
func (f fixedPlace) Use(context.Context, func(done, total int64)) (done func(), err error) {
	return func() {}, nil
}

// snapshotOf returns a snapshot of layers.
func snapshotOf(layers *refs.Layers, format git.ObjectFormat) (*refs.Snapshot, error) {
	return refs.Open("", "", refs.Options{Format: format, Source: fixedRefs{layers}}).Snapshot(context.Background())
}

// value returns the object ID of a ref as Git has seen it; zero if it did not exist.
func (s *shadow) value(name git.RefName) (git.ObjectID, error) {
	snapshot, err := snapshotOf(s.base.layers, s.base.record.ObjectFormat)
	if err != nil {
		return git.ObjectID{}, err
	}
	ref, _, err := snapshot.Lookup(name)
	return ref.ID, err
}

// Repo implements receivepack.Shadow.
func (s *shadow) Repo() *repo.Repo { return s.repo }

// Own implements receivepack.Shadow.
func (s *shadow) Own() string {
	if len(s.base.record.Lenders()) == 0 {
		return ""
	}
	if s.base.record.ObjectsEpoch > 0 {
		return s.path("base/objects")
	}
	return filepath.Join(s.local.Dir(), "objects")
}

// Close implements receivepack.Shadow. The files are removed in the background.
func (s *shadow) Close() {
	s.cancel()
	if s.repo != nil {
		_ = s.repo.Close()
	}
	s.done()
	s.store.running.Go(s.remove)
}

// remove removes the files, and the uploads that no record names.
func (s *shadow) remove() {
	for _, u := range s.uploads {
		u.close()
		if !u.committed && u.result.Key != "" {
			s.discard(u)
		}
	}
	if s.dir == "" {
		return
	}
	if err := os.RemoveAll(s.dir); err != nil {
		s.store.log.Warn("cannot remove the temporary repository of a push", "dir", s.dir, "error", err)
	}
}
