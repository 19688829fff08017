package storage

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// ListQuery selects repositories.
type ListQuery struct {
	Prefix string // of the path; it may end within a component
	After  string // Next of the previous page; "": the first page
	Limit  int    // maximum number of paths; zero means MaxPage
	All    bool   // also mirrors that must not be read
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
	w := repo.Walk{Options: n.options, Prefix: q.Prefix, After: q.After, MaxVisits: maxVisits, Unreadable: n.logUnreadable}
	var page Page
	for path, err := range w.All(ctx) {
		switch {
		case err == repo.ErrVisits:
			page.Next = w.Last
		case err != nil:
			return Page{}, err
		case len(page.Paths) == q.Limit:
			page.Next = page.Paths[q.Limit-1]
			return page, nil
		default:
			page.Paths = append(page.Paths, path)
		}
	}
	return page, nil
}

func (n *Node) logUnreadable(dir string, err error) error {
	n.log.Debug("skipped an unreadable directory in a list of repositories", "dir", dir, "error", err)
	return nil
}
