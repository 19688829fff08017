package search

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// shards returns the directory with the files that zoekt reads.
func (e *Engine) shards() string { return filepath.Join(e.o.Dir, "shards") }

// pad formats the number of a shard as zoekt does.
func pad(i int) string { return fmt.Sprintf("%05d", i) }

// isShardOf reports whether a name consists of the prefix, digits and dots, and ".zoekt".
func isShardOf(name, prefix string) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	rest, shard := strings.CutSuffix(rest, ".zoekt")
	return ok && shard && strings.Trim(rest, "0123456789.") == ""
}

// shardPrefix returns the start of the names that zoekt gives to the shards of a repository.
func shardPrefix(path git.RepoPath) string {
	name := url.QueryEscape(path.String())
	if len(name) > 200 {
		sum := sha1.Sum([]byte(name))
		name = name[:200] + hex.EncodeToString(sum[:])[:8]
	}
	return name
}

// dropShards removes all shards of a repository.
func (e *Engine) dropShards(path git.RepoPath) error { return e.removeShards(shardPrefix(path) + "_v") }

// dropIndex forgets the index of a repository and removes its shards. The caller holds e.mu.
func (e *Engine) dropIndex(r *repository) {
	r.indexed, r.shards, r.deltas, e.recount = nil, 0, 0, true
	if err := e.dropShards(r.path); err != nil {
		e.log.Warn("cannot remove a repository from the search index", "repository", r.path.String(), "error", err)
	}
}

// removeShards removes the shards with a prefix (isShardOf), in reverse order of their names.
func (e *Engine) removeShards(prefix string) error {
	entries, err := os.ReadDir(e.shards()) // in the order of names
	if err != nil {
		return err
	}
	for i := len(entries) - 1; i >= 0; i-- {
		name := entries[i].Name()
		if !isShardOf(name, prefix) {
			continue
		}
		if err := e.removeShard(name); err != nil {
			return fault.Wrap(fault.Unavailable, "cannot remove an index shard", err)
		}
	}
	return nil
}

// removeShard removes a shard with its metadata file.
func (e *Engine) removeShard(name string) error {
	if name != filepath.Base(name) {
		return fmt.Errorf("%q is not the name of an index shard", name)
	}
	err := os.Remove(filepath.Join(e.shards(), name))
	os.Remove(filepath.Join(e.shards(), name+".meta"))
	return err
}

// sweep removes leftover files of killed workers. No index worker may run meanwhile.
func (e *Engine) sweep() {
	entries, err := os.ReadDir(e.shards())
	if err != nil {
		return
	}
	for _, f := range entries {
		name := f.Name()
		meta, isMeta := strings.CutSuffix(name, ".meta")
		if strings.HasSuffix(name, ".tmp") || isMeta && !exists(filepath.Join(e.shards(), meta)) {
			os.Remove(filepath.Join(e.shards(), name))
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
