package places

import (
	"context"
	"os"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// maxVisits is the maximum number of directories and links that are visited for one page.
const maxVisits = 10_000

// List implements Places. It lists the repositories that repo.Walk finds. A page can be short or empty if there are
// many other directories. List reads each directory on the way. The error is Invalid if After is not from a page.
func (d *Directories) List(ctx context.Context, q ListQuery) (Page, error) {
	w := repo.Walk{Options: d.Repo, Prefix: q.Prefix, After: q.After, MaxVisits: maxVisits, Unreadable: d.logUnreadable}
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
func (d *Directories) selects(q ListQuery, below string) bool {
	dir := filepath.Join(d.root, filepath.FromSlash(below))
	if q.LFS && !isDir(filepath.Join(dir, "lfs")) {
		return false
	}
	if q.All || q.Accept == nil {
		return true
	}
	path, pathErr := git.ParseRepoPath(below)
	marks, err := FindMirrorMarks(dir, d.Repo)
	return pathErr != nil || err != nil || q.Accept(path, marks) == nil
}

func (d *Directories) logUnreadable(dir string, err error) error {
	d.Log.Debug("skipped an unreadable directory in a list of repositories", "dir", dir, "error", err)
	return nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
