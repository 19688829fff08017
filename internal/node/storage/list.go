package storage

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// ListQuery selects repositories.
type ListQuery struct {
	Prefix string // of the path; it may end within a component
	After  string // Next of the previous page; "": the first page
	Limit  int    // maximum number of paths; zero means MaxPage
	All    bool   // also mirrors that must not be read

	// Skipped is called with directories that look like repositories and are not listed, and the reason. It may be called
	// again for other pages. Nil: not looked for.
	Skipped func(path, why string)
}

// MaxPage is the maximum number of paths in a page.
const MaxPage = 1000

// maxVisits is the maximum number of directories and links that are visited for one page.
const maxVisits = 10_000

// Page is a part of a list of repositories.
type Page struct {
	Paths []string // below the root, as they are on disk: "team/app.git", "work/.git"
	Next  string   // position of the next page; "": this is the last one
}

// List lists the repositories that are served under a separate path, ordered by the components of their paths. A
// page can be short or empty if there are many other directories. Directories inside a repository or beside a ".git"
// are not searched. Links to repositories are listed, but links to directories with repositories are not followed.
// Paths that are not UTF-8 or not valid in requests are omitted. List reads each directory on the way. The error is
// Invalid if After is not from a page.
func (n *Node) List(ctx context.Context, q ListQuery) (Page, error) {
	n.metrics.lookups.repositories.Inc()
	page, err := n.list(ctx, q)
	if err == nil && !q.All && n.places == nil {
		page.Paths = n.withoutRefused(page.Paths)
	}
	return page, err
}

func (n *Node) list(ctx context.Context, q ListQuery) (Page, error) {
	if q.Limit <= 0 || q.Limit > MaxPage {
		q.Limit = MaxPage
	}
	if n.places != nil {
		return n.listPlaces(ctx, q)
	}
	l := lister{node: n, ctx: ctx, prefix: q.Prefix, limit: q.Limit, skipped: q.Skipped}
	if q.After != "" {
		if path, err := git.ParseRepoPath(q.After); err != nil || path.String() != q.After || !l.mayHold(q.After) {
			return Page{}, fault.New(fault.Invalid, "invalid page token: it is not from a list with this prefix")
		}
		l.after = strings.Split(q.After, "/")
	}
	if strings.HasPrefix(q.Prefix, "/") || strings.Contains(q.Prefix, "//") {
		return Page{}, nil
	}
	err := l.dir(n.root, "", l.after)
	if err == errFull {
		err = nil
	}
	return l.page, err
}

// errFull ends a walk when the page is full.
var errFull = errors.New("the page is full")

// lister walks the directories for one page.
type lister struct {
	node   *Node
	ctx    context.Context
	prefix string
	after  []string
	limit  int
	page   Page

	skipped func(path, why string)
	visits  int
	last    string // the path visited last
}

// dir walks a directory. below is its path below the root. after has the remaining components of the position at which
// the walk begins.
func (l *lister) dir(dir, below string, after []string) error {
	names, err := l.names(dir, below)
	if err != nil {
		return err
	}
	for _, name := range names {
		rest := []string(nil)
		if len(after) > 0 {
			if name < after[0] {
				continue
			}
			if name == after[0] {
				if rest = after[1:]; len(rest) == 0 { // the position itself belongs to the previous page
					continue
				}
			}
		}
		if err := l.entry(filepath.Join(dir, name), join(below, name), rest); err != nil {
			return err
		}
	}
	return nil
}

// names returns the sorted entries of a directory that can lead to the prefix; none if the directory cannot be read.
func (l *lister) names(dir, below string) ([]string, error) {
	if err := l.ctx.Err(); err != nil {
		return nil, err
	}
	if rest, ok := strings.CutPrefix(l.prefix, below); ok {
		if component, _, more := strings.Cut(strings.TrimPrefix(rest, "/"), "/"); more { // only this one can
			if l.mayHold(join(below, component)) {
				return []string{component}, nil
			}
			return nil, nil
		}
	}
	f, err := os.Open(dir)
	if err == nil {
		defer f.Close()
		var names []string
		if names, err = f.Readdirnames(-1); err == nil {
			names = slices.DeleteFunc(names, func(name string) bool {
				path := join(below, name)
				if l.mayHold(path) {
					return false
				}
				if l.skipped != nil && !isPrivate(path) && isRepository(filepath.Join(dir, name)) {
					l.skipped(path, "its name cannot be in the path of a request")
				}
				return true
			})
			slices.Sort(names)
			return names, nil
		}
	}
	if below == "" {
		return nil, fault.Wrap(fault.Unavailable, "cannot read the root directory", err)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		l.node.log.Debug("skipped an unreadable directory in a list of repositories", "dir", dir, "error", err)
	}
	return nil, nil
}

// mayHold reports whether the path, or one below it, can have the prefix and is valid.
func (l *lister) mayHold(path string) bool {
	if !strings.HasPrefix(path, l.prefix) && !strings.HasPrefix(l.prefix, path+"/") {
		return false
	}
	_, err := git.ParseRepoPath(path)
	return err == nil && utf8.ValidString(path) && !isPrivate(path)
}

// entry lists a repository, or walks a directory.
func (l *lister) entry(path, below string, after []string) error {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() && info.Mode()&fs.ModeSymlink == 0 {
		return nil
	}
	if l.visits++; l.visits > maxVisits {
		l.page.Next = l.last
		return errFull
	}
	defer func() { l.last = below }()
	if info.IsDir() && !l.node.options.Allows(path) {
		return nil
	}
	for _, candidate := range []string{join(below, ".git"), below} {
		if !isRepository(filepath.Join(l.node.root, candidate)) {
			continue
		}
		if !strings.HasPrefix(candidate, l.prefix) || len(after) > 0 {
			return nil
		}
		if _, err := l.node.checkPlace(filepath.Join(l.node.root, candidate)); err != nil {
			l.skip(candidate, "it is a link to outside of the root, or inside another repository")
			return nil
		}
		if len(l.page.Paths) == l.limit {
			l.page.Next = l.page.Paths[l.limit-1]
			return errFull
		}
		l.page.Paths = append(l.page.Paths, candidate)
		return nil
	}
	if !info.IsDir() {
		return nil
	}
	if l.skipped != nil && isDir(path+"/objects") {
		if packed, _ := exists(path + "/packed-refs"); packed || isDir(path+"/refs") {
			l.skip(below, "HEAD is missing or invalid, or refs is missing")
		}
	}
	return l.dir(path, below, after)
}

func (l *lister) skip(path, why string) {
	if l.skipped != nil {
		l.skipped(path, why)
	}
}

func join(below, name string) string {
	if below == "" {
		return name
	}
	return below + "/" + name
}
