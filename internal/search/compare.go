package search

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// compareShards schedules repositories whose index files have changed since they were written. zoekt silently ignores
// files that were truncated or removed.
func (e *Engine) compareShards() {
	e.mu.Lock()
	jobs := make(map[*repository]int, len(e.repos))
	for _, r := range e.repos {
		if _, busy := e.jobs[r]; !busy && len(r.indexed) > 0 && r.seal != "" {
			jobs[r] = r.jobs
		}
	}
	e.mu.Unlock()
	entries, err := os.ReadDir(e.shards())
	if err != nil && !os.IsNotExist(err) {
		return
	}
	shards := make(map[string][]string, len(jobs))
	for _, f := range entries {
		if i := strings.LastIndex(f.Name(), "_v"); i >= 0 && strings.HasSuffix(f.Name(), ".zoekt") {
			shards[f.Name()[:i]] = append(shards[f.Name()[:i]], f.Name())
		}
	}
	seals := make(map[string]string, len(shards))
	for prefix, names := range shards {
		seals[prefix], _ = e.sealOf(names) // empty if it cannot be read
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.repos {
		begun, idle := jobs[r]
		if !idle || begun != r.jobs || len(r.indexed) == 0 || r.seal == seals[shardPrefix(r.path)] {
			continue // unchanged, or it changed meanwhile
		}
		e.log.Warn("index shards have changed or are missing; their repository is indexed again", "repository",
			r.path.String())
		e.dropIndex(r)
		e.enqueue(r, laneCheck, time.Now())
	}
}

// sealOf returns a checksum of the names, sizes and times of index files and of the files that zoekt keeps beside them
// (".meta").
func (e *Engine) sealOf(shards []string) (string, error) {
	h := sha256.New()
	for _, name := range shards {
		for _, name := range []string{name, name + ".meta"} {
			fi, err := os.Lstat(filepath.Join(e.shards(), name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return "", err
			}
			fmt.Fprintf(h, "%q %d %d\n", name, fi.Size(), fi.ModTime().UnixNano())
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:12]), nil
}

// secure writes a repository's shards to disk and records their seal in the catalogue. If this fails, or a power
// failure comes before, the repository is indexed again at the next start.
func (e *Engine) secure(r *repository, id uint32, shards []string) error {
	seal, err := e.sealOf(shards)
	if err != nil {
		return err
	}
	for _, name := range shards {
		for _, name := range []string{name, name + ".meta"} {
			if err := disk.SyncDir(filepath.Join(e.shards(), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	if err := disk.SyncDir(e.shards()); err != nil {
		return err
	}
	e.mu.Lock()
	namesOnly := r.namesOnly
	if e.jobs[r] == nil && e.byID[id] == r && len(r.indexed) > 0 {
		r.seal = seal
	}
	e.mu.Unlock()
	return e.catalogue.seal(id, seal, namesOnly)
}
