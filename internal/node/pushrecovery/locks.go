package pushrecovery

import (
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Lock files that do not belong to a single ref, relative to the common directory. HEAD's is relative to the Git
// directory.
const (
	headLock       = "HEAD.lock"
	shallowLock    = "shallow.lock"
	tablesLock     = "reftable/tables.list.lock"
	packedRefsLock = "packed-refs.lock"
	packedRefsNew  = "packed-refs.new" // Git does not overwrite an existing one
)

// clockSkew is the maximum difference between the clocks of a file system and of this process.
const clockSkew = time.Second

// lockFile is a lock file that a push may make.
type lockFile struct {
	path   string
	shared bool        // it is for all refs
	ref    git.RefName // "": not of a single ref
}

// lockFiles lists the lock files that a push may make.
func lockFiles(r *Record) iter.Seq[lockFile] {
	return func(yield func(lockFile) bool) {
		shared := []string{shallowLock, tablesLock}
		if r.deletes() { // Git also removes the ref from packed-refs
			shared = append(shared, packedRefsLock, packedRefsNew)
		}
		for _, name := range shared {
			if !yield(lockFile{path: filepath.Join(r.CommonDir, name), shared: true}) {
				return
			}
		}
		if r.LocksHead && !yield(lockFile{path: filepath.Join(r.GitDir, headLock)}) {
			return
		}
		for name := range r.Refs {
			if !yield(lockFile{path: filepath.Join(r.CommonDir, string(name)+".lock"), ref: name}) {
				return
			}
		}
	}
}

// mayHold reports whether a push may have made one of these lock files.
func mayHold(r *Record, locks map[string]staleLock) bool {
	for l := range lockFiles(r) {
		if _, ok := locks[l.path]; ok {
			return true
		}
	}
	return false
}

// staleLock is a lock file that a killed push left.
type staleLock struct {
	info   fs.FileInfo
	shared bool
}

// staleLocks finds the lock files that the push left.
func (p *Push) staleLocks() map[string]staleLock {
	found := make(map[string]staleLock)
	for l := range lockFiles(&p.Record) {
		info, err := os.Lstat(l.path)
		if err == nil && info.Mode().IsRegular() && isOwn(info) && p.covers(info) && p.wrote(l, info) {
			found[l.path] = staleLock{info: info, shared: l.shared}
		}
	}
	return found
}

// isOwn reports whether a file belongs to the user of this process.
func isOwn(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return !ok || int(stat.Uid) == os.Geteuid()
}

// covers reports whether a file was changed while the push ran.
func (p *Push) covers(info fs.FileInfo) bool {
	at := info.ModTime()
	return !at.Before(p.Start.Add(-clockSkew)) && !at.After(p.ended.Add(clockSkew))
}

// wrote reports whether the push can have written the content of a lock file: it is empty, or has the ref's new value.
func (p *Push) wrote(l lockFile, info fs.FileInfo) bool {
	if l.ref == "" || info.Size() == 0 {
		return true
	}
	id := p.Refs[l.ref]
	if id.IsZero() || info.Size() > int64(id.Format().HexSize()+1) {
		return false
	}
	text, err := os.ReadFile(l.path)
	return err == nil && strings.TrimSuffix(string(text), "\n") == id.String() // Git writes the newline separately
}

// unchanged reports whether a file is still the same and was not changed.
func unchanged(path string, before fs.FileInfo) bool {
	info, err := os.Lstat(path)
	return err == nil && os.SameFile(info, before) && info.ModTime().Equal(before.ModTime()) &&
		info.Size() == before.Size()
}

// removeLocksBeforeBoot removes lock files that would block a push and are older than the boot of the machine, because
// no process can hold them. It does nothing for pushes of very many refs.
func (r *Recovery) removeLocksBeforeBoot(record *Record) {
	const maxRefs = 10_000
	boot := bootTime()
	if len(record.Refs) > maxRefs || boot.IsZero() {
		return
	}
	for l := range lockFiles(record) {
		info, err := os.Lstat(l.path)
		if err == nil && info.Mode().IsRegular() && info.ModTime().Before(boot.Add(-clockSkew)) {
			r.removed("lock", l.path, r.unlink(l.path))
		}
	}
}

// FindLock finds the oldest lock file that blocks a push. The name is relative to the repository.
// The age is zero if there is none.
func FindLock(record *Record) (name string, age time.Duration) {
	for l := range lockFiles(record) {
		info, err := os.Lstat(l.path)
		if err != nil || time.Since(info.ModTime()) <= age {
			continue
		}
		age, name = time.Since(info.ModTime()), filepath.Base(l.path)
		if relative, err := filepath.Rel(record.CommonDir, l.path); err == nil {
			name = relative
		}
	}
	return name, age
}
