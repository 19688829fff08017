package receivepack

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// persist brings to the disk what git leaves to the file system: git syncs files and not the directories that they are in, so that a pack
// or a ref may be gone after a loss of power although its bytes are there. Objects come first: a ref must not be there without what it names.
func (p *pushing) persist(ctx context.Context, done []Update) error {
	common := p.target.Common
	var dirs []string
	seen := make(map[string]bool)
	add := func(dir string) {
		if !seen[dir] {
			seen[dir] = true
			dirs = append(dirs, dir)
		}
	}
	if p.request.pushes() {
		add(filepath.Join(common, "objects/pack"))
	}
	if tables := filepath.Join(common, "reftable"); isDir(tables) {
		add(tables)
	} else {
		for _, name := range p.names(done) {
			for dir := filepath.Dir(filepath.Join(common, string(name))); len(dir) > len(common); dir = filepath.Dir(dir) {
				if seen[dir] {
					break
				}
				add(dir)
			}
		}
		add(common) // packed-refs
	}
	for _, dir := range dirs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := p.sync(dir); err != nil && !errors.Is(err, fs.ErrNotExist) { // git removes a directory with its last ref
			return fault.Wrap(fault.Unavailable, "the refs were changed, but may be lost if the machine fails now", err)
		}
	}
	return nil
}

// unkeep removes the file that keeps the push's pack from being packed anew. Git removes it itself but for some versions after 2.55, which look
// for it in the quarantine. It would stay for ever, and refuse the same pack when that is pushed once more.
func (p *pushing) unkeep(pid int) {
	if !p.request.pushes() {
		return
	}
	within := func(info fs.FileInfo) bool { return !info.ModTime().Before(p.began.Add(-slack)) }
	for path, by := range keepFiles(p.target.Common, within) {
		if by != pid && !dead(by) {
			continue // another push
		}
		if err := os.Remove(path); err == nil {
			p.metrics.swept.WithLabelValues("keep").Inc()
			p.log.Debug("removed the keep file of a push", "path", path)
		} else if !errors.Is(err, fs.ErrNotExist) {
			p.log.Warn("cannot remove what a push has left", "what", "keep", "path", path, "error", err)
		}
	}
}

// names are those of the refs that were changed, and of those that they lead to.
func (p *pushing) names(done []Update) []git.RefName {
	var names []git.RefName
	for _, u := range done {
		names = append(names, u.Ref)
		if ref, ok, err := p.before.Lookup(u.Ref); err == nil && ok && ref.Target != "" {
			names = append(names, ref.Target)
		}
	}
	return names
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
