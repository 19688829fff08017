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

// persist syncs the directories that Git has changed. Git syncs only files, so that a pack or a ref could be lost in a
// power failure although its content is on disk. Objects come first, because a ref must not exist without its object.
func (p *pushSession) persist(ctx context.Context, updates []Update) error {
	common := p.target.Common
	var dirs []string
	seen := make(map[string]bool)
	add := func(dir string) {
		if !seen[dir] {
			seen[dir] = true
			dirs = append(dirs, dir)
		}
	}
	if p.request.hasPack() {
		add(filepath.Join(common, "objects/pack"))
	}
	if tables := filepath.Join(common, "reftable"); isDir(tables) {
		add(tables)
	} else {
		for _, name := range p.refNames(updates) {
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
		if err := p.sync(dir); err != nil && !errors.Is(err, fs.ErrNotExist) { // Git removes a directory with its last ref
			return fault.Wrap(fault.Unavailable, "refs were changed, but can be lost in a power failure", err)
		}
	}
	return nil
}

// refNames returns the names of the refs that were changed, and of the targets of symbolic ones.
func (p *pushSession) refNames(updates []Update) []git.RefName {
	var names []git.RefName
	for _, u := range updates {
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
