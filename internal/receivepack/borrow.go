package receivepack

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// A repository that borrows objects has more of them than those who may read it may know of. Git takes a push if all that it needs is there, from
// wherever; whoever names an object of the lender's by its ID could fetch it then, and all below. So of what the new refs reach and the repository's
// own refs do not, each object has to come with the push, or be in the repository's own object directory. Nor may the push have been made
// whole with borrowed objects as the bases of deltas: what is made of one tells what is in it.
//
// Borrowed objects that the repository's own refs reach are its history, and fine. Most are found where they are looked for first: in the
// commits that the push goes on from. What is left is looked for in all history, within limits.

const (
	// maxBorrowed is how many borrowed objects of one push are looked for in the repository's history.
	maxBorrowed = 100_000
	// maxForks is how many commits that a push goes on from are looked at before all history is.
	maxForks = 1000
	// borrowLimit bounds the whole check.
	borrowLimit = 2 * time.Minute
)

// errBorrowed does not say which object: who asks might learn what a commit that they may not read is made of.
func errBorrowed() error {
	return fault.New(fault.Denied, "the push needs objects that are neither in it nor in this repository's history; "+
		"push them from a clone that has them all")
}

// borrows tells whether the repository has objects of others.
func (t Target) borrows() bool { return t.Objects.HasAlternates() }

// packStart reads a pack, and knows how many objects it says it has (gitformat-pack(5)).
type packStart struct {
	source io.Reader
	head   [12]byte
	have   int
	count  atomic.Uint32 // once git has the head
}

func (s *packStart) Read(b []byte) (int, error) {
	n, err := s.source.Read(b)
	if s.have < len(s.head) {
		if s.have += copy(s.head[s.have:], b[:n]); s.have == len(s.head) {
			s.count.Store(binary.BigEndian.Uint32(s.head[8:]))
		}
	}
	return n, err
}

// borrowing is the check of one push.
type borrowing struct {
	*pushing
	env    []string
	news   string                // the new values of refs, by lines
	pushed *pack.Lookups         // in the quarantine; nil: nothing came
	own    *pack.Lookups         // without what the repository borrows; nil: none of it is certain to be its own
	bases  map[git.ObjectID]bool // what git made the pack whole with
	open   map[git.ObjectID]bool // borrowed, and not known to be of the repository's history
	stores []*pack.Store
}

// checkBorrowed refuses a push that would make borrowed objects the repository's.
func (p *pushing) checkBorrowed(ctx context.Context, quarantine string, updates []Update) error {
	ctx, cancel := context.WithTimeout(ctx, borrowLimit)
	defer cancel()
	var news strings.Builder
	for _, u := range updates {
		if !u.New.IsZero() {
			news.WriteString(u.New.String() + "\n")
		}
	}
	if news.Len() == 0 {
		return nil
	}
	b := &borrowing{pushing: p, news: news.String(), open: make(map[git.ObjectID]bool)}
	defer b.close()
	err := b.begin(quarantine)
	if err == nil {
		err = b.check(ctx)
	}
	switch {
	case err == nil || fault.Is(err, fault.Denied):
		return err
	case ctx.Err() != nil:
		err = cmp.Or(context.Cause(ctx), err)
	}
	p.log.Warn("cannot tell what a push borrows", "repository", p.push.Repo.String(), "error", err)
	return fault.Wrap(fault.Unavailable, "the server cannot tell whether all of the push is in it or in this repository's history", err)
}

// begin finds out what the push brought, and what is the repository's own.
func (b *borrowing) begin(quarantine string) (err error) {
	objects := filepath.Join(b.target.Common, "objects")
	if !b.target.Objects.Linked() {
		if b.own, err = b.alone(objects); err != nil {
			return err
		}
	}
	if quarantine == "" {
		return nil
	}
	b.env = []string{"GIT_OBJECT_DIRECTORY=" + quarantine, "GIT_ALTERNATE_OBJECT_DIRECTORIES=" + quotePath(objects)}
	if b.pushed, err = b.alone(quarantine); err != nil {
		return err
	}
	sent := b.pack.count.Load()
	indexes, err := filepath.Glob(filepath.Join(escapeGlob(quarantine), "pack", "*.idx"))
	if err != nil || len(indexes) == 0 {
		return err
	}
	if len(indexes) > 1 {
		return errors.New("git has made more than one pack of a push")
	}
	added, err := pack.After(indexes[0], b.target.Format, int(sent))
	if err != nil {
		return err
	}
	b.bases = make(map[git.ObjectID]bool, len(added))
	for _, id := range added {
		b.bases[id] = true
		if err := b.object(id); err != nil {
			return err
		}
	}
	return nil
}

// alone looks into one object directory, and not where that borrows from.
func (b *borrowing) alone(objects string) (*pack.Lookups, error) {
	s, err := pack.Open(objects, pack.Options{Format: b.target.Format, Alone: true})
	if err != nil {
		return nil, err
	}
	b.stores = append(b.stores, s)
	l := s.Lookups()
	return &l, nil
}

func (b *borrowing) close() {
	for _, s := range b.stores {
		s.Close()
	}
}

// object notes an object that is needed, if it is borrowed.
func (b *borrowing) object(id git.ObjectID) error {
	for _, s := range []*pack.Lookups{b.pushed, b.own} {
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

// errEnough ends a list of objects: no more of it is needed.
var errEnough = errors.New("enough")

// found strikes an object off that is the repository's history.
func (b *borrowing) found(id git.ObjectID) error {
	if delete(b.open, id); len(b.open) == 0 {
		return errEnough
	}
	return nil
}

func (b *borrowing) check(ctx context.Context) error {
	err := b.list(ctx, b.news, func(_ byte, id git.ObjectID) error { return b.object(id) }, "--objects", "--no-object-names", "--stdin", "--not", "--all")
	if err != nil || len(b.open) == 0 {
		return err
	}
	var forks strings.Builder
	n := 0
	err = b.list(ctx, b.news, func(mark byte, id git.ObjectID) error {
		if mark == '-' {
			forks.WriteString(id.String() + "\n")
			n++
		}
		if n == maxForks {
			return errEnough
		}
		return nil
	}, "--boundary", "--stdin", "--not", "--all")
	of := func(_ byte, id git.ObjectID) error { return b.found(id) }
	if err == nil && n > 0 {
		err = b.list(ctx, forks.String(), of, "--objects", "--no-object-names", "--no-walk", "--stdin")
	}
	if err == nil && len(b.open) > 0 {
		err = b.list(ctx, "", of, "--objects", "--no-object-names", "--use-bitmap-index", "--all")
	}
	if err == nil && len(b.open) > 0 {
		b.log.LogAttrs(ctx, slog.LevelInfo, "a push needs objects that the repository only borrows", slog.String("repository", b.push.Repo.String()),
			slog.Int("objects", len(b.open)))
		return errBorrowed()
	}
	return err
}

// list calls each with what git rev-list lists: IDs, with a mark before them or none (0).
func (b *borrowing) list(ctx context.Context, input string, each func(mark byte, id git.ObjectID) error, args ...string) error {
	args = append([]string{"-c", "safe.directory=*", "--git-dir=" + b.target.Dir, "rev-list"}, args...)
	child, err := b.options.Runner.Start(ctx, process.Command{
		Class: ClassHook, Subcommand: "rev-list", Args: args, Env: b.env, Caller: b.caller, Repository: b.target.Common, Stdin: strings.NewReader(input),
	})
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(child.Stdout())
	for err == nil && lines.Scan() {
		line, mark := lines.Bytes(), byte(0)
		if len(line) > 0 && line[0] == '-' {
			line, mark = line[1:], line[0]
		}
		var id git.ObjectID
		if id, err = git.ParseObjectID(line); err == nil {
			err = each(mark, id)
		}
	}
	if err == nil {
		err = lines.Err()
	}
	if err != nil {
		child.Kill()
		_, _ = child.Wait()
		if err == errEnough {
			return nil
		}
		return err
	}
	_, err = child.Wait()
	return err
}
