package places

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// maxVisits is the maximum number of directories and links that are visited for one page.
const maxVisits = 10_000

// List implements Places. It lists the repositories that repo.Walk finds. A page can be short or empty if there are
// many other directories. List reads each directory on the way. The error is Invalid if After is not from a page.
func (d *Directories) List(ctx context.Context, q ListQuery) (Page, error) {
	w := repo.Walk{Options: d.Repo, Prefix: q.Prefix, After: q.After, MaxVisits: maxVisits, Unreadable: d.logUnreadable,
		Cache: &d.walked}
	var page Page
	for path, err := range w.All(ctx) {
		switch {
		case err == repo.ErrVisits:
			page.Next = w.Last
		case err != nil:
			return Page{}, err
		case !d.selects(q, path, w.FoundID):
		case len(page.Paths) == q.Limit:
			page.Next = page.Paths[q.Limit-1]
			return page, nil
		default:
			page.Paths = append(page.Paths, path)
		}
	}
	return page, nil
}

// selects reports whether the query selects a repository that was found in a directory with an ID.
func (d *Directories) selects(q ListQuery, below string, id disk.ID) bool {
	dir := filepath.Join(d.root, filepath.FromSlash(below))
	if q.LFS && !isDir(filepath.Join(dir, "lfs")) {
		return false
	}
	if (q.All || q.Accept == nil) && len(q.Labels) == 0 {
		return true
	}
	path, pathErr := git.ParseRepoPath(below)
	known := d.listed.get(dir, id, d.Repo)
	if !HasLabels(known.labels, q.Labels) {
		return false
	}
	return q.All || q.Accept == nil || pathErr != nil || known.err != nil || q.Accept(path, known.marks) == nil
}

// HasLabels reports whether all wanted labels, KEY or KEY=VALUE, are among those of a repository.
func HasLabels(labels, wanted []string) bool {
	for _, want := range wanted {
		if !slices.ContainsFunc(labels, func(label string) bool {
			return label == want || !strings.Contains(want, "=") && strings.HasPrefix(label, want+"=")
		}) {
			return false
		}
	}
	return true
}

// LabelKey is the key of the labels of a repository.
const LabelKey = "packhorse.label"

// listedConfigs has what lists need of the configurations of repositories, by their directories.
type listedConfigs struct {
	mu     sync.Mutex
	byPath map[string]listedConfig
}

type listedConfig struct {
	dir, config disk.ID
	marks       MirrorMarks
	err         error // of reading the marks
	labels      []string
}

// maxListedConfigs is the maximum number of configurations in memory.
const maxListedConfigs = 200_000

// get returns what the configuration of the repository in a directory says. A directory with the zero ID is read again.
func (l *listedConfigs) get(dir string, id disk.ID, o repo.Options) listedConfig {
	now := time.Now()
	config, err := disk.Stat(dir + "/config")
	l.mu.Lock()
	known, ok := l.byPath[dir]
	l.mu.Unlock()
	if ok && err == nil && known.dir == id && known.config == config {
		return known
	}
	known = listedConfig{dir: id, config: config}
	known.marks, known.err = FindMirrorMarks(dir, o)
	if text, _ := os.ReadFile(dir + "/config"); bytes.Contains(bytes.ToLower(text), []byte("packhorse")) {
		if _, c, err := repo.ReadConfig(dir, o); err == nil {
			known.labels = ReadSettings(dir, c)[LabelKey]
		}
	}
	if err == nil && id != (disk.ID{}) && config.Settled(now) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.byPath == nil || len(l.byPath) >= maxListedConfigs {
			l.byPath = make(map[string]listedConfig)
		}
		l.byPath[dir] = known
	}
	return known
}

func (d *Directories) logUnreadable(dir string, err error) error {
	d.Log.Debug("skipped an unreadable directory in a list of repositories", "dir", dir, "error", err)
	return nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
