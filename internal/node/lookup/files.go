package lookup

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// FilesRequest requests the files of a commit.
type FilesRequest struct {
	Commit git.ObjectID
	Base   git.ObjectID // commit to compare with: only differing files are sent; zero: all files
	Limit  int64        // files of more bytes are sent without content; at most MaxContent
}

// treesPerFile is how many directories for each file are listed, besides as many as one comparison reads.
const treesPerFile = 10

// MaxContent is the maximum of FilesRequest.Limit in bytes.
const MaxContent = maxObject

// File is one file of a commit.
type File struct {
	Path    []byte
	Mode    uint32
	ID      git.ObjectID
	Size    int64  // bytes of the whole blob. 0: not a blob. -1: missing or damaged
	Content []byte // nil: larger than the limit, not a blob, missing, damaged, or gone
	Gone    bool   // the base has the file and the commit does not; the other fields except Path are zero
}

// Files calls send with the files of a commit in the order of git ls-tree -r, or with the differences from a base in
// the order of git diff-tree -r. It sends one at a time; the file is valid only during the call. Symbolic links are
// files with their target as content. Submodules have no content.
//
// A missing or damaged blob is sent without content, and counted. A damaged tree is an error. The error is NotFound if
// the commit or the base does not exist.
func (l *Reader) Files(ctx context.Context, r *repo.Repo, q FilesRequest, send func(*File) error) error {
	if q.Limit < 0 || q.Limit > MaxContent {
		return fault.New(fault.Invalid, "the limit has to be from 0 to %d bytes", int64(MaxContent))
	}
	c, err := l.begin(ctx, r)
	if err != nil {
		return err
	}
	defer c.end()
	f := &filer{operation: c, limit: q.Limit, send: send}
	to, err := c.rootOf(q.Commit)
	if err != nil {
		return err
	}
	if q.Base.IsZero() {
		return f.all(to)
	}
	from, err := c.rootOf(q.Base)
	if err != nil {
		return err
	}
	d := &differ{operation: c, each: f.sendDifference}
	return d.trees(from, to, 0)
}

// rootOf returns the tree of a commit ID.
func (c *operation) rootOf(commit git.ObjectID) (git.ObjectID, error) {
	if commit.IsZero() || commit.Format() != c.repo.Format {
		return git.ObjectID{}, fault.New(fault.Invalid, "%s is not a commit ID of the repository's format, %s", commit,
			c.repo.Format)
	}
	typ, _, err := c.repo.Objects.Header(commit)
	if err != nil {
		return git.ObjectID{}, err
	}
	if typ != git.Commit {
		return git.ObjectID{}, fault.New(fault.Invalid, "object %s is a %s, not a commit", commit, typ)
	}
	headers, err := c.commitHeaders(commit)
	return headers.Tree, err
}

// filer sends files with their content.
type filer struct {
	*operation
	limit int64
	send  func(*File) error
	file  File // reused
}

// all sends all files of a tree.
func (f *filer) all(root git.ObjectID) error {
	t := &lister{operation: f.operation, recursive: true, root: root}
	if err := t.enter(root, 0); err != nil {
		return err
	}
	trees, files := 0, 0
	for {
		entries, err := t.list(maxPage)
		if err != nil {
			return err
		}
		// The receiver can count files, but not directories without any, of which a few objects can make millions.
		if trees, files = trees+t.trees, files+len(entries); trees > t.bounds.diffTrees+treesPerFile*files {
			return fault.New(fault.Invalid, "the commit has %d directories for only %d files: too many", trees, files)
		}
		for _, e := range entries {
			if err := f.sendFile(e.Path, treeEntry{e.ID, e.Mode}); err != nil {
				return err
			}
		}
		if len(t.stack) == 0 {
			return nil
		}
		t.trees = 0
	}
}

// sendDifference sends one difference of a comparison.
func (f *filer) sendDifference(path []byte, _, new treeEntry) error {
	if new.mode == 0 {
		f.file = File{Path: path, Gone: true}
		return f.send(&f.file)
	}
	return f.sendFile(path, new)
}

func (f *filer) sendFile(path []byte, e treeEntry) error {
	f.file = File{Path: path, Mode: e.mode, ID: e.id}
	if e.mode == pack.ModeGitlink {
		return f.send(&f.file)
	}
	if err := f.ctx.Err(); err != nil {
		return err
	}
	data, size, err := f.content(e.id)
	if err != nil {
		return err
	}
	defer f.drop(int64(len(data)))
	f.file.Content, f.file.Size = data, size
	return f.send(&f.file)
}

// content reads a blob of up to the limit. Its data counts as held memory.
func (f *filer) content(id git.ObjectID) (data []byte, size int64, err error) {
	typ, size, data, err := f.readUpTo(id, git.Blob, f.limit)
	switch kind := fault.KindOf(err); {
	case kind == fault.NotFound || kind == fault.Corrupt || err == nil && typ != git.Blob:
		return nil, -1, nil
	case err != nil:
		return nil, 0, err
	case size > f.limit:
		return nil, size, nil
	}
	if data == nil {
		data = []byte{}
	}
	return data, size, f.hold(size)
}

// Behind counts the commits that new reaches and old does not, up to limit. As in Log, wrong clocks can mislead it. A
// history of more than 2,000,000 visited commits is an error of kind Invalid. The error is NotFound if a commit does
// not exist.
func (l *Reader) Behind(ctx context.Context, r *repo.Repo, old, new git.ObjectID, limit int) (int, error) {
	if limit < 1 || limit > maxLog {
		return 0, fault.New(fault.Invalid, "the limit has to be from 1 to %d commits", maxLog)
	}
	if old == new {
		return 0, nil
	}
	c, err := l.begin(ctx, r)
	if err != nil {
		return 0, err
	}
	defer c.end()
	for _, id := range []git.ObjectID{old, new} {
		if _, err := c.rootOf(id); err != nil {
			return 0, err
		}
	}
	ids, err := c.log(LogRequest{Revisions: []string{new.String()}, Exclude: []string{old.String()}, Limit: limit})
	return len(ids), err
}
