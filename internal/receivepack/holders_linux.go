package receivepack

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// holders tells whether a process has a lock open, and whether a git that was there when the lock was made, and that is not of this server's, may be at
// work in the repository: by its working directory, its arguments or its environment. Processes of other users may not be seen, whose locks are known
// by that; nor are those of other machines and containers.
func holders(n note, lock string, since time.Time) (open, near bool) {
	n.Dir, n.Common = real(n.Dir), real(n.Common)
	lock = filepath.Join(real(filepath.Dir(lock)), filepath.Base(lock))
	all := processes()
	for pid, p := range all {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		files, _ := os.ReadDir(filepath.Join(dir, "fd"))
		for _, f := range files {
			if to, err := os.Readlink(filepath.Join(dir, "fd", f.Name())); err == nil && to == lock {
				return true, true
			}
		}
		leader := all[p.group]
		ours := leader.parent == os.Getpid() && strings.HasPrefix(leader.name, "git")
		near = near || !ours && strings.HasPrefix(p.name, "git") && p.start.Before(since.Add(slack)) && worksIn(dir, n)
	}
	return false, near
}

// real is a path without symbolic links, if it leads anywhere.
func real(path string) string {
	if to, err := filepath.EvalSymlinks(path); err == nil {
		return to
	}
	return path
}

// running is a process.
type running struct {
	name          string
	parent, group int
	start         time.Time
}

// processes lists those that can be seen, by their IDs.
func processes() map[int]running {
	list := make(map[int]running)
	entries, _ := os.ReadDir("/proc")
	boot := bootTime()
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if p, ok := parseStat(string(text), boot); err == nil && ok {
			list[pid] = p
		}
	}
	return list
}

// ticks is how many units of time proc(5) counts in a second: of USER_HZ, which is the same on all of Go's architectures.
const ticks = 100

// parseStat reads /proc/PID/stat (proc(5)). A name may have any character.
func parseStat(text string, boot time.Time) (p running, ok bool) {
	from, to := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if from < 0 || to < from {
		return p, false
	}
	p.name = text[from+1 : to]
	fields := strings.Fields(text[to+1:])
	if len(fields) < 20 {
		return p, false
	}
	var errs [3]error
	p.parent, errs[0] = strconv.Atoi(fields[1])
	p.group, errs[1] = strconv.Atoi(fields[2])
	start, err := strconv.ParseInt(fields[19], 10, 64)
	errs[2] = err
	p.start = boot.Add(time.Duration(start) * (time.Second / ticks))
	return p, errors.Join(errs[:]...) == nil
}

// worksIn tells whether a process may work in a repository.
func worksIn(dir string, n note) bool {
	top, called := n.Common, filepath.Base(n.Common)
	if called == ".git" {
		top = filepath.Dir(top)
		called = filepath.Base(top)
	}
	in := func(path string) bool {
		return path == top || strings.HasPrefix(path, top+"/") || path == n.Dir || strings.HasPrefix(path, n.Dir+"/")
	}
	if cwd, err := os.Readlink(filepath.Join(dir, "cwd")); err == nil && in(cwd) {
		return true
	}
	args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
	env, _ := os.ReadFile(filepath.Join(dir, "environ"))
	return leadTo(args, "", called, in) || leadTo(env, "GIT_", called, in)
}

// leadTo tells whether one of several texts that begin so is a path in the repository: one from the root, or one from wherever the process was then
// that has the repository's name. A text with a colon is an address: of a client.
func leadTo(texts []byte, prefix, called string, in func(path string) bool) bool {
	for text := range strings.SplitSeq(string(texts), "\x00") {
		if !strings.HasPrefix(text, prefix) || strings.ContainsRune(text, ':') {
			continue
		}
		if _, value, ok := strings.Cut(text, "="); ok {
			text = value
		}
		if !filepath.IsAbs(text) {
			if strings.Contains(text, called) {
				return true
			}
		} else if real, err := filepath.EvalSymlinks(text); err == nil && in(real) {
			return true
		}
	}
	return false
}
