package storage

import (
	"bufio"
	"context"
	"io"
	"os"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// linkLFS gives a fork on this disk the LFS objects of its source that its refs name, by hard links. Others stay
// unreadable in the fork.
func (n *Node) linkLFS(ctx context.Context, source *handle, fork git.RepoPath) error {
	if _, err := os.Stat(filepath.Join(source.Common, "lfs/objects")); err != nil || n.lfs == nil || n.runner == nil ||
		source.place.LFS() != nil {
		return nil
	}
	from, err := source.lfs()
	if err != nil {
		return err
	}
	h, to, err := n.lfsRepository(ctx, fork)
	if err != nil {
		return err
	}
	defer n.release(h)
	pointers := make(map[string]lfs.Object)
	cache := lfs.NewPointerCache(filepath.Join(source.Common, "lfs/pointers"))
	err = lfs.ScanPointers(ctx, source.Objects, cache, func(p lfs.Pointer) error {
		pointers[p.Blob.String()] = p.Object
		return nil
	})
	if err != nil || len(pointers) == 0 {
		return err
	}
	var named []lfs.Object
	_, err = n.runner.Read(ctx, process.Command{Class: places.ClassManage, Subcommand: "rev-list", Repository: h.Common,
		Args: []string{"--git-dir=" + h.Dir, "rev-list", "--objects", "--no-object-names", "--all"}},
		func(out io.Reader) error {
			lines := bufio.NewScanner(out)
			for lines.Scan() {
				if o, ok := pointers[lines.Text()]; ok {
					named = append(named, o)
				}
			}
			return lines.Err()
		})
	if err != nil {
		return err
	}
	states, err := n.lfs.Check(ctx, from, lfs.Batch{Objects: named})
	for i := 0; err == nil && i < len(states); i++ {
		if states[i].State != lfs.Present {
			continue
		}
		var isLinked bool
		if isLinked, err = n.lfs.Link(to, named[i]); err == nil && !isLinked {
			err = fault.New(fault.Unavailable, "the LFS object %s is only in the directory of the source: import it "+
				"(packhorse lfs import)", named[i].OID)
		}
	}
	return err
}
