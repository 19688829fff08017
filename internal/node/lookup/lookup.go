// Package lookup reads one repository's objects in process: the bytes of a blob, the entries of a directory, commits
// and history.
//
// Revisions defines the syntax of revisions. An empty revision is HEAD. An annotated tag stands for the object that it
// peels to. Hidden refs do not exist. Every object of the store can be requested by its ID, because callers are
// trusted. A path has slashes between its components and is compared byte by byte, as in git. "." and ".." are names
// without a special meaning.
//
// Every response is bounded in memory, and Options.Memory limits all calls together. The work of recursive directories
// and history is not known in advance. Such a response has pages, or the work is counted and ends with an
// error that names the limit. Long work ends when the context does.
//
// Errors: Invalid and NotFound name the requested object. Corrupt means that the repository refers to an object that is
// missing or damaged, and names it. Exhausted means that other calls hold the memory.
package lookup

import (
	"context"
	"fmt"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
)

const (
	small     = 1 << 20   // objects up to this size do not count against the budget
	maxObject = 64 << 20  // bytes of a commit or a tree
	maxPath   = 64 << 10  // bytes of the path in a request
	maxHeld   = 512 << 20 // maximum memory of one call
	// DefaultMemory is the default memory of all calls together.
	DefaultMemory = 512 << 20
)

// Options of a Reader.
type Options struct {
	Memory *admit.Budget // limits the memory of large objects of all calls together; nil: 512 MiB
}

// Reader answers look-ups. It is safe for concurrent use.
type Reader struct {
	budget *admit.Budget
	bounds bounds
	last   *lastCache
}

// bounds are limits that tests lower.
type bounds struct {
	whole     int64 // bytes of a blob that is not streamed
	piece     int   // bytes of a blob in one call
	pageTrees int   // trees that are read for one page, which may contain only other trees
	depth     int   // nested directories
	diffTrees int   // trees that one comparison reads

	passedStep int           // LastCommits remembers one of so many commits that it passes
	tail       time.Duration // to read the commits that it has found, also if its caller does not wait
}

var usualBounds = bounds{
	whole: small, piece: Piece, pageTrees: 10_000, depth: 2048, /* git's core.maxTreeDepth */
	diffTrees: 1_000_000, passedStep: 64, tail: 5 * time.Second,
}

// New creates a Reader.
func New(o Options) *Reader {
	if o.Memory == nil {
		o.Memory = admit.NewBudget("objects", DefaultMemory)
	}
	return &Reader{budget: o.Memory, bounds: usualBounds, last: newLastCache()}
}

// operation is one call of a Reader. It is used by one goroutine.
type operation struct {
	*Reader
	ctx   context.Context
	repo  *repo.Repo
	done  func() // ends the use of the repository's objects; nil: the caller does that
	held  int64  // bytes of objects in memory
	taken int64  // the part taken from the budget

	revisions *Revisions // nil: no ref was requested
}

// begin begins an operation on the current state of the repository. The caller has to end it.
func (l *Reader) begin(ctx context.Context, r *repo.Repo) (*operation, error) {
	done, err := r.Hold(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.Refresh(); err != nil {
		done()
		return nil, err
	}
	return &operation{Reader: l, ctx: ctx, repo: r, done: done}, nil
}

func (c *operation) end() {
	c.drop(c.held)
	if c.done != nil {
		c.done()
	}
}

// readRefs returns the refs, whose objects can be read until the operation ends.
func (c *operation) readRefs() (*refs.Snapshot, error) {
	snapshot, err := c.repo.Refs.Snapshot(c.ctx)
	if err != nil {
		return nil, err
	}
	done, err := c.repo.Hold(c.ctx)
	if err != nil {
		return nil, err
	}
	c.done()
	c.done = done
	return snapshot, nil
}

// hold counts n more bytes of memory. The error is Invalid above the limit of the call, and Exhausted above the budget.
func (c *operation) hold(n int64) error {
	if c.held+n > maxHeld {
		return fault.New(fault.Invalid, "the objects to be read together have more than %d bytes", int64(maxHeld))
	}
	if more := c.held + n - small - c.taken; more > 0 {
		if err := c.budget.Take("", more); err != nil {
			return err
		}
		c.taken += more
	}
	c.held += n
	return nil
}

// drop releases memory that hold counted.
func (c *operation) drop(n int64) {
	c.held -= n
	if less := c.taken - max(0, c.held-small); less > 0 {
		c.budget.Give("", less)
		c.taken -= less
	}
}

// read reads a whole object that the repository refers to, and verifies it. The bytes count as held memory: the caller
// calls drop when it does not need them any more.
func (c *operation) read(id git.ObjectID, want git.ObjectType, limit int64) ([]byte, error) {
	if err := c.ctx.Err(); err != nil {
		return nil, err
	}
	typ, size, data, err := c.readUpTo(id, want, limit)
	switch {
	case fault.Is(err, fault.NotFound):
		return nil, fault.Wrap(fault.Corrupt, fmt.Sprintf("the repository is incomplete: %s %s is missing", want, id),
			err)
	case err != nil:
		return nil, err
	case typ != want:
		return nil, fault.New(fault.Corrupt, "object %s is a %s where a %s should be", id, typ, want)
	case size > limit:
		return nil, fault.New(fault.Invalid, "object %s has %d bytes, more than the limit of %d", id, size, limit)
	}
	return data, c.hold(int64(len(data)))
}

// readUpTo reads an object of a type and of at most limit bytes. Of other objects it may return only the type and the
// size. The memory for rebuilding a large object is held meanwhile.
func (c *operation) readUpTo(id git.ObjectID, want git.ObjectType, limit int64) (typ git.ObjectType, size int64,
	data []byte, err error) {
	read := c.repo.Objects.Read
	if want == git.Tree {
		read = c.repo.Objects.ReadShared
	}
	typ, data, err = read(id, max(1, min(limit, small))) // a limit of 0 means the default
	if !fault.Is(err, fault.Invalid) {
		return typ, int64(len(data)), data, err
	}
	if typ, size, err = c.repo.Objects.Header(id); err != nil || typ != want || size > limit {
		return typ, size, nil, err
	}
	if err = c.hold(unpacking * size); err != nil {
		return typ, size, nil, err
	}
	defer c.drop(unpacking * size)
	typ, data, err = c.repo.Objects.Read(id, limit)
	return typ, size, data, err
}

// unpacking is the memory for rebuilding an object, as a multiple of its size: the object and two bases of deltas.
const unpacking = 3

// resolve resolves a revision and peels the result.
func (c *operation) resolve(revision string) (git.ObjectID, git.ObjectType, error) {
	if id, err := git.ParseObjectID(revision); err == nil && id.Format() == c.repo.Format {
		return c.repo.Graph.Peel(id)
	}
	if c.revisions == nil {
		snapshot, err := c.readRefs()
		if err != nil {
			return git.ObjectID{}, 0, err
		}
		c.revisions = &Revisions{operation: c, snapshot: snapshot}
	}
	found, err := c.revisions.Resolve(revision)
	if err != nil || found.Type != git.Tag {
		return found.ID, found.Type, err
	}
	id, typ, err := c.repo.Graph.Peel(found.ID)
	if fault.Is(err, fault.NotFound) {
		err = fault.Wrap(fault.Corrupt,
			fmt.Sprintf("the repository is incomplete: the target of tag %s is missing", found.ID), err)
	}
	return id, typ, err
}

// commitOf finds the commit that a revision names.
func (c *operation) commitOf(revision string) (git.ObjectID, error) {
	id, typ, err := c.resolve(revision)
	if err == nil && typ != git.Commit {
		err = fault.New(fault.Invalid, "revision %.200q is a %s, not a commit", revision, typ)
	}
	return id, err
}

// treeOf finds the root directory of a revision: a commit's tree, or a tree itself.
func (c *operation) treeOf(revision string) (git.ObjectID, error) {
	id, typ, err := c.resolve(revision)
	switch {
	case err != nil:
		return git.ObjectID{}, err
	case typ == git.Tree:
		return id, nil
	case typ == git.Commit:
		commit, err := c.commitHeaders(id)
		return commit.Tree, err
	}
	return git.ObjectID{}, fault.New(fault.Invalid, "revision %.200q is a %s, which has no directories", revision, typ)
}

func (c *operation) commitHeaders(id git.ObjectID) (pack.Commit, error) {
	data, err := c.read(id, git.Commit, maxObject)
	if err != nil {
		return pack.Commit{}, err
	}
	defer c.drop(int64(len(data)))
	commit, err := pack.ParseCommit(data, c.repo.Format)
	return commit, fault.Wrap(fault.Corrupt, "commit "+id.String()+" is damaged", err)
}
