package storage

import (
	"context"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// ListQuery selects repositories.
type ListQuery struct {
	Prefix string // of the path; it may end within a component
	After  string // Next of the previous page; "": the first page
	Limit  int    // maximum number of paths; zero means MaxPage
	All    bool   // also mirrors that must not be read

	lfs     bool        // only repositories that may have LFS objects or locks
	mirrors MirrorCheck // lists only mirrors that it accepts; nil: all
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

// List lists the repositories that repo.Walk finds. A page can be short or empty if there are many other directories.
// List reads each directory on the way. The error is Invalid if After is not from a page.
func (n *Node) List(ctx context.Context, q ListQuery) (Page, error) {
	if q.Limit <= 0 || q.Limit > MaxPage {
		q.Limit = MaxPage
	}
	if !q.All {
		q.mirrors = n.checkMirror
	}
	return n.places.List(ctx, q)
}

// List implements Places.
func (d *directories) List(ctx context.Context, q ListQuery) (Page, error) {
	w := repo.Walk{Options: d.options, Prefix: q.Prefix, After: q.After, MaxVisits: maxVisits, Unreadable: d.logUnreadable}
	var page Page
	for path, err := range w.All(ctx) {
		switch {
		case err == repo.ErrVisits:
			page.Next = w.Last
		case err != nil:
			return Page{}, err
		case !d.selects(q, path):
		case len(page.Paths) == q.Limit:
			page.Next = page.Paths[q.Limit-1]
			return page, nil
		default:
			page.Paths = append(page.Paths, path)
		}
	}
	return page, nil
}

// selects reports whether the query selects a repository that was found.
func (d *directories) selects(q ListQuery, below string) bool {
	dir := filepath.Join(d.root, filepath.FromSlash(below))
	if q.lfs && !isDir(filepath.Join(dir, "lfs")) {
		return false
	}
	if q.mirrors == nil {
		return true
	}
	path, pathErr := git.ParseRepoPath(below)
	marks, err := FindMirrorMarks(dir, d.options)
	return pathErr != nil || err != nil || q.mirrors(path, marks) == nil
}

func (d *directories) logUnreadable(dir string, err error) error {
	d.log.Debug("skipped an unreadable directory in a list of repositories", "dir", dir, "error", err)
	return nil
}
