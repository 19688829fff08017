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

// ListQuery says which repositories are to be listed.
type ListQuery struct {
	Prefix string // of the path; it may end within a component
	After  string // the Next of the page before
	Limit  int    // at most this many paths; 0: MaxPage
}

// MaxPage is how many paths a page has at most.
const MaxPage = 1000

// maxVisits bounds the directories and links that are looked at for one page.
const maxVisits = 10_000

// Page is a part of a list.
type Page struct {
	Paths []string // below the root, as they are on disk: "team/app.git", "work/.git"
	Next  string   // where the next page begins; "": there is none
}

// List lists the repositories that are served by a path of their own, in the order of their paths compared component by component. A page
// may be short, or empty, where much lies between repositories. Nothing below a repository is looked at, nor beside a ".git"; links are
// listed where they lead to a repository, but not followed where they lead to directories of them. Paths that are not UTF-8, or that
// no request can name, are left out. It costs a look at each entry on the way, and reading the directories above the page. Errors: Invalid
// for an After that no page gave.
func (n *Node) List(ctx context.Context, q ListQuery) (Page, error) {
	n.metrics.lookups.repositories.Inc()
	return n.list(ctx, q)
}

func (n *Node) list(ctx context.Context, q ListQuery) (Page, error) {
	if q.Limit <= 0 || q.Limit > MaxPage {
		q.Limit = MaxPage
	}
	l := lister{node: n, ctx: ctx, prefix: q.Prefix, limit: q.Limit}
	if q.After != "" {
		if path, err := git.ParseRepoPath(q.After); err != nil || path.String() != q.After || !l.mayHold(q.After) {
			return Page{}, fault.New(fault.Invalid, "the page token is not from a list with this prefix")
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

// errFull ends a walk whose page is full.
var errFull = errors.New("the page is full")

// lister is one walk.
type lister struct {
	node   *Node
	ctx    context.Context
	prefix string
	after  []string
	limit  int
	page   Page
	visits int
	last   string // the path that was looked at last
}

// dir walks a directory, of which below is the path below the root. After is what remains of the position behind which the walk begins.
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
				if rest = after[1:]; len(rest) == 0 { // the position itself: it was listed, or walked to its end
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

// names are the entries of a directory that may lead to what is asked for, in order. One that cannot be read, or is gone, has none.
func (l *lister) names(dir, below string) ([]string, error) {
	if err := l.ctx.Err(); err != nil {
		return nil, err
	}
	if rest, ok := strings.CutPrefix(l.prefix, below); ok {
		if component, _, more := strings.Cut(strings.TrimPrefix(rest, "/"), "/"); more { // the only one that may
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
			names = slices.DeleteFunc(names, func(name string) bool { return !l.mayHold(join(below, name)) })
			slices.Sort(names)
			return names, nil
		}
	}
	if below == "" {
		return nil, fault.Wrap(fault.Unavailable, "cannot read the root directory", err)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		l.node.log.Debug("a directory is left out of a list", "dir", dir, "error", err)
	}
	return nil, nil
}

// mayHold tells whether the path, or one below it, can have the prefix, and can be named.
func (l *lister) mayHold(path string) bool {
	if !strings.HasPrefix(path, l.prefix) && !strings.HasPrefix(l.prefix, path+"/") {
		return false
	}
	_, err := git.ParseRepoPath(path)
	return err == nil && utf8.ValidString(path) && !isOwn(path)
}

// entry looks at one entry: it lists a repository, and walks a directory.
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
		if _, err := l.node.inside(filepath.Join(l.node.root, candidate)); err != nil {
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
	return l.dir(path, below, after)
}

func join(below, name string) string {
	if below == "" {
		return name
	}
	return below + "/" + name
}
