package lookup

import (
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

const (
	binaryProbe = 8000    // bytes in which git looks for a NUL
	maxStats    = 1000    // files in a batch
	statsBytes  = 1 << 20 // bytes of paths at which a batch is full
)

// FileStat describes the difference of a file. On a side without the file, mode and ID are zero.
type FileStat struct {
	Path             []byte
	OldMode, NewMode uint32
	OldID, NewID     git.ObjectID
	Added, Deleted   int64 // lines
	Binary           bool  // lines are not counted: one side is binary
	TooLarge         bool  // lines are not counted: more than 8 MiB, 500,000 lines that differ, or too much work
}

// DiffStat calls send with the files that differ between two trees, or trees of commits, in the order of git diff-tree
// -r, in batches of up to 1,000. An empty old is the first parent of new, or the empty tree if it has none.
//
// Lines are counted as by git diff-tree --minimal --numstat -r since git 2.50; earlier versions may count more. Renames
// are not detected, and attributes are ignored. A file is binary if its first 8,000 bytes contain a NUL. A submodule is
// a file of one line.
func (l *Reader) DiffStat(ctx context.Context, r *repo.Repo, old, new string, send func([]FileStat) error) error {
	c, err := l.begin(ctx, r)
	if err != nil {
		return err
	}
	defer c.end()
	s := &stats{operation: c, send: send}
	d := &differ{operation: c, each: s.add}
	to, err := c.treeOf(new)
	if err != nil {
		return err
	}
	var from git.ObjectID
	if old == "" {
		from, err = c.parentTree(new)
	} else {
		from, err = c.treeOf(old)
	}
	if err != nil {
		return err
	}
	if err := d.trees(from, to, 0); err != nil {
		return err
	}
	return s.flush()
}

// parentTree returns the tree of a commit's first parent; zero if there is none, or if the commit is shallow.
func (c *operation) parentTree(revision string) (git.ObjectID, error) {
	id, typ, err := c.resolve(revision)
	if err != nil || typ != git.Commit {
		return git.ObjectID{}, err
	}
	shallow, err := c.repo.ShallowSet()
	if err != nil || shallow.Has(id) {
		return git.ObjectID{}, err
	}
	commit, err := c.commitHeaders(id)
	if err != nil || len(commit.Parents) == 0 {
		return git.ObjectID{}, err
	}
	parent, err := c.commitHeaders(commit.Parents[0])
	return parent.Tree, err
}

// differ compares two trees.
type differ struct {
	*operation
	// each is called with each difference. A missing side is zero. The path is valid only during the call.
	each   func(path []byte, old, new treeEntry) error
	path   []byte
	opened int // trees
}

// stats counts lines and sends batches.
type stats struct {
	*operation
	send  func([]FileStat) error
	batch []FileStat
	size  int // bytes of paths in batch
}

// side is a tree on one side of a comparison, with its current entry.
type side struct {
	tree git.ObjectID
	data []byte
	rest []byte

	treeEntry
	name []byte // nil: at the end
}

func (d *differ) open(tree git.ObjectID) (s side, err error) {
	s.tree = tree
	if tree.IsZero() {
		return s, nil
	}
	if d.opened++; d.opened > d.bounds.diffTrees {
		return s, fault.New(fault.Invalid, "more than %d directories had to be compared; compare smaller parts",
			d.bounds.diffTrees)
	}
	if s.data, err = d.tree(tree); err != nil {
		return s, err
	}
	s.rest = s.data
	return s, d.next(&s)
}

func (d *differ) next(s *side) (err error) {
	if len(s.rest) == 0 {
		s.treeEntry, s.name = treeEntry{}, nil
		return nil
	}
	if s.mode, s.name, s.id, s.rest, err = pack.CutEntry(s.rest, d.repo.Format); err != nil {
		return damagedTree(s.tree, err)
	}
	return nil
}

// trees compares two trees. The zero ID is the empty tree. A directory and a file of the same name are two names.
func (d *differ) trees(old, new git.ObjectID, depth int) error {
	if old == new {
		return nil
	}
	if depth == d.bounds.depth {
		return fault.New(fault.Invalid, "directories are nested more than %d deep, at %q", d.bounds.depth,
			fault.Short(d.path))
	}
	a, err := d.open(old)
	if err != nil {
		return err
	}
	defer func() { d.drop(int64(len(a.data))) }()
	b, err := d.open(new)
	if err != nil {
		return err
	}
	defer func() { d.drop(int64(len(b.data))) }()
	for a.name != nil || b.name != nil {
		order := compareEntries(&a, &b)
		var from, to treeEntry
		name := a.name
		if order <= 0 {
			from = a.treeEntry
		}
		if order >= 0 {
			to, name = b.treeEntry, b.name
		}
		if err := d.pair(name, from, to, depth); err != nil {
			return err
		}
		if order <= 0 {
			if err := d.next(&a); err != nil {
				return err
			}
		}
		if order >= 0 {
			if err := d.next(&b); err != nil {
				return err
			}
		}
	}
	return nil
}

// compareEntries compares names in the order of trees, in which the names of directories end in a slash. The end of a
// side comes last.
func compareEntries(a, b *side) int {
	switch {
	case a.name == nil:
		return 1
	case b.name == nil:
		return -1
	}
	n := min(len(a.name), len(b.name))
	if order := bytes.Compare(a.name[:n], b.name[:n]); order != 0 {
		return order
	}
	after := func(s *side) int {
		switch {
		case len(s.name) > n:
			return int(s.name[n])
		case s.mode == pack.ModeTree:
			return '/'
		}
		return 0
	}
	if x, y := after(a), after(b); x != y {
		return x - y
	}
	return len(a.name) - len(b.name) // not 0 only for invalid names
}

// pair compares the entries of one name on both sides. A missing entry is zero.
func (d *differ) pair(name []byte, old, new treeEntry, depth int) error {
	if old == new {
		return nil
	}
	prefix := len(d.path)
	if prefix+len(name) > statsBytes {
		return fault.New(fault.Invalid, "a path is longer than %d bytes: %q", statsBytes, fault.Short(d.path))
	}
	d.path = append(d.path, name...)
	defer func() { d.path = d.path[:prefix] }()
	if old.mode == pack.ModeTree || new.mode == pack.ModeTree {
		d.path = append(d.path, '/')
		return d.trees(old.id, new.id, depth+1)
	}
	return d.each(d.path, old, new)
}

// add counts a file.
func (s *stats) add(path []byte, old, new treeEntry) error {
	f := FileStat{Path: bytes.Clone(path), OldMode: old.mode, NewMode: new.mode, OldID: old.id, NewID: new.id}
	if err := s.count(&f); err != nil {
		return err
	}
	if f.TooLarge {
		s.metrics.tooLarge.Inc()
	}
	s.batch = append(s.batch, f)
	if s.size += len(f.Path); len(s.batch) == maxStats || s.size >= statsBytes {
		return s.flush()
	}
	return nil
}

func (s *stats) flush() error {
	if len(s.batch) == 0 {
		return nil
	}
	err := s.send(s.batch)
	s.batch, s.size = s.batch[:0], 0
	return err
}

// count counts a file's lines.
func (s *stats) count(f *FileStat) error {
	old, err := s.content(treeEntry{f.OldID, f.OldMode})
	if err != nil {
		return err
	}
	defer s.drop(int64(len(old.data)))
	same := f.OldID == f.NewID
	if same && f.OldMode != pack.ModeGitlink && f.NewMode != pack.ModeGitlink {
		f.Binary = old.binary
		return nil
	}
	new, err := s.content(treeEntry{f.NewID, f.NewMode})
	if err != nil {
		return err
	}
	defer s.drop(int64(len(new.data)))
	switch {
	case old.binary || new.binary:
		f.Binary = true
		return nil
	case same: // a submodule and a blob with the same ID are equal for git
		return nil
	case old.large || new.large:
		f.TooLarge = true
		return nil
	}
	added, deleted, ok, err := s.lineCount(old.data, new.data)
	f.Added, f.Deleted, f.TooLarge = added, deleted, !ok && err == nil
	return err
}

// content is one side of a file.
type content struct {
	data   []byte
	binary bool
	large  bool // data is nil because the blob is too large
}

// content reads a blob, or the text for a submodule. A missing entry is empty. The data counts as held memory.
func (s *stats) content(e treeEntry) (content, error) {
	switch {
	case e.id.IsZero() && e.mode == 0:
		return content{}, nil
	case e.mode == pack.ModeGitlink:
		data := []byte("Subproject commit " + e.id.String() + "\n")
		return content{data: data}, s.hold(int64(len(data)))
	}
	data, err := s.read(e.id, git.Blob, s.bounds.diffBlob)
	if err == nil {
		return content{data: data, binary: isBinary(data)}, nil
	}
	if !fault.Is(err, fault.Invalid) {
		return content{}, err
	}
	stream, err := s.repo.Objects.Stream(e.id)
	if errors.Is(err, pack.ErrDelta) {
		return content{large: true}, nil
	}
	if err != nil {
		return content{}, err
	}
	defer stream.Close()
	head := make([]byte, binaryProbe)
	n, err := io.ReadFull(stream, head)
	if err != nil && err != io.ErrUnexpectedEOF && err != io.EOF {
		return content{}, err
	}
	return content{large: true, binary: isBinary(head[:n])}, nil
}

// isBinary is git's buffer_is_binary.
func isBinary(data []byte) bool {
	return bytes.IndexByte(data[:min(len(data), binaryProbe)], 0) >= 0
}
