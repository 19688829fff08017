package receivepack

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// A repository with alternates can read objects that its users may not read. Git accepts a push if the objects that it
// needs exist anywhere. So a user who knows the ID of a lender's object could push a ref to it, and then fetch it.
//
// To prevent that, the objects that only the new refs reach must be in the push or in the repository's own object
// directory. Git must also not have completed the pack with borrowed delta bases, because a delta reveals the content
// of its base.
//
// Borrowed objects that the repository's own refs reach belong to its history, and are allowed. Most of them are in the
// commits that the push builds on, which are searched first. Then the whole history is searched, within limits.

const (
	// maxBorrowed is the maximum number of borrowed objects of one push.
	maxBorrowed = 100_000
	// maxBoundary is the maximum number of commits that a push builds on and that are searched before the whole history.
	maxBoundary = 1000
	// borrowTimeout bounds the whole check.
	borrowTimeout = 2 * time.Minute
)

// errBorrowed does not name the object, which would reveal the content of a commit that the client may not read.
func errBorrowed() error {
	return fault.New(fault.Denied, "the push needs objects that are neither in it nor in this repository's history; "+
		"push from a complete clone")
}

// borrows reports whether the repository borrows objects of another one. A shadow borrows those of its own repository.
func (t Target) borrows() bool {
	if t.Shadow != nil {
		return t.Shadow.Own() != ""
	}
	return t.Objects.HasAlternates()
}

// packStart reads a pack and keeps the number of objects in its header (gitformat-pack(5)).
type packStart struct {
	body   io.Reader
	header [12]byte
	length int           // of header
	count  atomic.Uint32 // valid when Git has read the header
}

func (s *packStart) Read(b []byte) (int, error) {
	n, err := s.body.Read(b)
	if s.length < len(s.header) {
		if s.length += copy(s.header[s.length:], b[:n]); s.length == len(s.header) {
			s.count.Store(binary.BigEndian.Uint32(s.header[8:]))
		}
	}
	return n, err
}

// borrowCheck checks one push.
type borrowCheck struct {
	*pushSession
	env    []string
	newIDs string                // new values of the refs, one per line
	pushed *pack.Lookups         // objects in the quarantine; nil: none
	own    []*pack.Lookups       // the repository's own objects; empty: unknown
	bases  map[git.ObjectID]bool // delta bases that Git added to the pack
	open   map[git.ObjectID]bool // borrowed objects not yet found in the history
	stores []*pack.Store
}

// checkBorrowed refuses a push that would make borrowed objects reachable.
func (p *pushSession) checkBorrowed(ctx context.Context, quarantine string, updates []Update) error {
	ctx, cancel := context.WithTimeout(ctx, borrowTimeout)
	defer cancel()
	var newIDs strings.Builder
	for _, u := range updates {
		if !u.New.IsZero() {
			newIDs.WriteString(u.New.String() + "\n")
		}
	}
	if newIDs.Len() == 0 {
		return nil
	}
	b := &borrowCheck{pushSession: p, newIDs: newIDs.String(), open: make(map[git.ObjectID]bool)}
	defer b.close()
	err := b.openStores(quarantine)
	if err == nil {
		err = b.check(ctx)
	}
	switch {
	case err == nil || fault.Is(err, fault.Denied):
		return err
	case ctx.Err() != nil:
		err = cmp.Or(context.Cause(ctx), err)
	}
	p.log.Warn("cannot check the borrowed objects of a push", "repository", p.push.Repo.String(), "error", err)
	return fault.Wrap(fault.Unavailable, "push not accepted: the server cannot check which objects it borrows", err)
}

// openStores opens the object directories of the push and of the repository itself.
func (b *borrowCheck) openStores(quarantine string) (err error) {
	objects := filepath.Join(b.target.Common, "objects")
	own := []string{objects}
	if b.target.Shadow != nil {
		own = append(own, b.target.Shadow.Own())
	} else if b.target.Objects.Linked() {
		own = nil
	}
	for _, dir := range own {
		l, err := b.openAlone(dir)
		if err != nil {
			return err
		}
		b.own = append(b.own, l)
	}
	if quarantine == "" {
		return nil
	}
	b.env = process.ObjectsEnv(quarantine, objects)
	if b.pushed, err = b.openAlone(quarantine); err != nil {
		return err
	}
	sent := b.pack.count.Load()
	indexes, err := fs.Glob(os.DirFS(quarantine), "pack/*.idx")
	if err != nil || len(indexes) == 0 {
		return err
	}
	if len(indexes) > 1 {
		return errors.New("git stored the push in more than one pack")
	}
	added, err := pack.After(filepath.Join(quarantine, indexes[0]), b.target.Format, int(sent))
	if err != nil {
		return err
	}
	b.bases = make(map[git.ObjectID]bool, len(added))
	for _, id := range added {
		b.bases[id] = true
		if err := b.checkObject(id); err != nil {
			return err
		}
	}
	return nil
}

// openAlone opens one object directory without its alternates.
func (b *borrowCheck) openAlone(objects string) (*pack.Lookups, error) {
	s, err := pack.Open(objects, pack.Options{Format: b.target.Format, Alone: true})
	if err != nil {
		return nil, err
	}
	b.stores = append(b.stores, s)
	l := s.Lookups()
	return &l, nil
}

func (b *borrowCheck) close() {
	for _, s := range b.stores {
		s.Close()
	}
}

// checkObject adds a needed object to the open ones if it is borrowed.
func (b *borrowCheck) checkObject(id git.ObjectID) error {
	for _, s := range append([]*pack.Lookups{b.pushed}, b.own...) {
		if s == nil || s == b.pushed && b.bases[id] {
			continue
		}
		if has, err := s.Has(id); has || err != nil {
			return err
		}
	}
	if b.open[id] = true; len(b.open) > maxBorrowed {
		return errBorrowed()
	}
	return nil
}

// errStop ends a list of objects early.
var errStop = errors.New("stop")

// markFound removes an object of the repository's history from the open ones.
func (b *borrowCheck) markFound(id git.ObjectID) error {
	if delete(b.open, id); len(b.open) == 0 {
		return errStop
	}
	return nil
}

func (b *borrowCheck) check(ctx context.Context) error {
	err := b.list(ctx, b.newIDs, func(_ byte, id git.ObjectID) error { return b.checkObject(id) }, "--objects",
		"--no-object-names", "--stdin", "--not", "--all")
	if err != nil || len(b.open) == 0 {
		return err
	}
	var boundary strings.Builder
	n := 0
	err = b.list(ctx, b.newIDs, func(mark byte, id git.ObjectID) error {
		if mark == '-' {
			boundary.WriteString(id.String() + "\n")
			n++
		}
		if n == maxBoundary {
			return errStop
		}
		return nil
	}, "--boundary", "--stdin", "--not", "--all")
	found := func(_ byte, id git.ObjectID) error { return b.markFound(id) }
	if err == nil && n > 0 {
		err = b.list(ctx, boundary.String(), found, "--objects", "--no-object-names", "--no-walk", "--stdin")
	}
	if err == nil && len(b.open) > 0 {
		err = b.list(ctx, "", found, "--objects", "--no-object-names", "--use-bitmap-index", "--all")
	}
	if err == nil && len(b.open) > 0 {
		b.log.Info("a push needs borrowed objects", "repository", b.push.Repo.String(), "objects", len(b.open))
		return errBorrowed()
	}
	return err
}

// list calls fn with each ID that git rev-list prints, and the mark before it; 0: there is none.
func (b *borrowCheck) list(ctx context.Context, input string, fn func(mark byte, id git.ObjectID) error,
	args ...string) error {
	return b.revList(ctx, b.env, strings.NewReader(input), func(line []byte) error {
		mark := byte(0)
		if len(line) > 0 && line[0] == '-' {
			line, mark = line[1:], line[0]
		}
		id, err := git.ParseObjectID(line)
		if err != nil {
			return err
		}
		return fn(mark, id)
	}, args...)
}

// revList calls fn with each line of git rev-list, until fn returns errStop.
func (p *pushSession) revList(ctx context.Context, env []string, input io.Reader, fn func(line []byte) error,
	args ...string) error {
	args = append([]string{"-c", "safe.directory=*", "--git-dir=" + p.target.Dir, "rev-list"}, args...)
	child, err := p.options.Runner.Start(ctx, process.Command{
		Class: ClassHook, Subcommand: "rev-list", Args: args, Env: env, Caller: p.caller, Repository: p.target.Common,
		Stdin: input,
	})
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(child.Stdout())
	for err == nil && lines.Scan() {
		err = fn(lines.Bytes())
	}
	if err == nil {
		err = lines.Err()
	}
	if err != nil {
		child.Kill()
		_, _ = child.Wait()
		if err == errStop {
			return nil
		}
		return err
	}
	_, err = child.Wait()
	return err
}
