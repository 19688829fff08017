package pushrecovery

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// RemoveKeepFile removes the .keep file of a push that has ended, given the process ID of its git receive-pack and the
// start of the push. Some versions of Git after 2.55 search it in the quarantine and do not remove it. It would make
// Git refuse the same pack later.
func (r *Recovery) RemoveKeepFile(common string, pid int, began time.Time) {
	recent := func(info fs.FileInfo) bool { return !info.ModTime().Before(began.Add(-clockSkew)) }
	for path, owner := range keepFiles(common, recent) {
		if owner != pid && !isDead(owner) {
			continue // of another push
		}
		if err := os.Remove(path); err == nil {
			r.Removed.WithLabelValues("keep").Inc()
			r.Log.Debug("removed the .keep file of a push", "path", path)
		} else if !errors.Is(err, fs.ErrNotExist) {
			r.Log.Warn("cannot remove a leftover file of a push", "what", "keep", "path", path, "error", err)
		}
	}
}

// keepFiles finds the .keep files of packs that git receive-pack made on this machine, with its process ID. Nothing is
// known about the processes of other machines, and administrators write something else into these files.
func keepFiles(common string, include func(fs.FileInfo) bool) map[string]int {
	here, err := os.Hostname()
	if err != nil {
		here = "localhost" // as in Git
	}
	dir := filepath.Join(common, "objects/pack")
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	found := make(map[string]int)
	for _, name := range names {
		if !strings.HasPrefix(name, "pack-") || !strings.HasSuffix(name, ".keep") {
			continue
		}
		path := filepath.Join(dir, name)
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || !include(info) || info.Size() > 1<<10 {
			continue
		}
		text, err := os.ReadFile(path)
		pid, host := 0, ""
		if _, scan := fmt.Sscanf(string(text), "receive-pack %d on %s", &pid, &host); err == nil && scan == nil && pid > 0 &&
			host == here {
			found[path] = pid
		}
	}
	return found
}

// isDead reports whether no process has this ID.
func isDead(pid int) bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) }

// quarantines finds the directories of new objects that the push may have left. Those that were not changed for the
// given time are unused.
func (p *Push) quarantines(idle time.Duration) (unused []string, used bool) {
	for _, prefix := range []string{"tmp_objdir-incoming-", "incoming-"} { // since Git 2.35, and before
		dirs, _ := fs.Glob(os.DirFS(filepath.Join(p.CommonDir, "objects")), prefix+"*")
		for _, dir := range dirs {
			dir = filepath.Join(p.CommonDir, "objects", dir)
			latest := newestFile(dir)
			switch {
			case latest == nil || !p.covers(latest):
			case time.Since(latest.ModTime()) < idle:
				used = true
			default:
				unused = append(unused, dir)
			}
		}
	}
	return unused, used
}

// newestFile returns the most recently changed file of a directory and everything below it.
func newestFile(dir string) (latest fs.FileInfo) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && (latest == nil || info.ModTime().After(latest.ModTime())) {
			latest = info
		}
		return nil
	})
	return latest
}
