package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/git/process"
)

// MinimumGit is the oldest supported git. It introduced core.fsync, which puts pushes on disk before they are reported.
var MinimumGit = process.Version{2, 36}

// gitFeatures are features that need a newer git than the minimum.
var gitFeatures = []struct {
	since process.Version
	what  string
}{
	{process.Version{2, 45}, "repositories with reftables"},
}

// TooOld returns an error if a git is older than the minimum.
func TooOld(program string, v process.Version) error {
	if !v.Before(MinimumGit) {
		return nil
	}
	return fmt.Errorf("git.program: %s is git %s, and a server needs %s or later; install a newer git, or name one "+
		"with --git", program, v, MinimumGit)
}

// Git examines the git program.
func Git(ctx context.Context, program string, r *Report) {
	add := func(severity Severity, kind, text, advice string) {
		r.Add(Finding{Group: GroupGit, Severity: severity, Kind: kind, Subject: program, Text: text, Advice: advice})
	}
	v, text, err := process.VersionOf(ctx, program)
	if err != nil {
		add(Problem, "git-missing", err.Error(), "install git, or name the program with git.program")
		return
	}
	r.Fact(GroupGit, "version "+text)
	if err := TooOld(program, v); err != nil {
		add(Problem, "git-too-old", fmt.Sprintf("git %s is older than %s, and a server does not start with it", text,
			MinimumGit), "install a newer git, or name one with git.program")
		return
	}
	for _, f := range gitFeatures {
		if v.Before(f.since) {
			add(Hint, "git-feature", fmt.Sprintf("%s need git %s, and this is %s: requests to them are refused", f.what, f.since,
				text), "install git "+f.since.String()+" or later if there are any")
		}
	}
}

// Least limits of a server.
const (
	leastFiles     = 8192
	leastProcesses = 1024
)

// Limits examines resource limits: those of a running server, or of this process if pid is 0.
func Limits(pid int, r *Report) {
	files, processes, err := limitsOf(pid)
	if err != nil {
		r.Fact(GroupLimits, "cannot be read: "+err.Error())
		return
	}
	whose := "this shell's"
	if pid != 0 {
		whose = "the server's"
	}
	r.Fact(GroupLimits, fmt.Sprintf("%s: %s open files, %s processes", whose, limitText(files), limitText(processes)))
	check := func(kind, what string, limit, least uint64, unit, shell string) {
		if limit < least {
			r.Add(Finding{Group: GroupLimits, Severity: Problem, Kind: kind,
				Text: fmt.Sprintf("%s limit of %s is %d; under load it should be %d at least", whose, what, limit, least),
				Advice: fmt.Sprintf("%s=%d in the unit of systemd, or ulimit -H%s %d before the server starts", unit, 8*least,
					shell, 8*least)})
		}
	}
	check("open-files", "open files", files, leastFiles, "LimitNOFILE", "n")
	check("processes", "processes", processes, leastProcesses, "LimitNPROC", "u")
}

func limitText(n uint64) string {
	if n >= 1<<62 {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}

// Disk examines the file systems of directories; the keys name them in messages. For a missing directory it examines
// its closest existing parent.
func Disk(dirs map[string]string, r *Report) {
	seen := map[unix.Fsid]bool{}
	for _, name := range []string{"root", "state", "cache"} {
		dir := dirs[name]
		if dir == "" {
			continue
		}
		for filepath.Dir(dir) != dir {
			if _, err := os.Stat(dir); err == nil {
				break
			}
			dir = filepath.Dir(dir)
		}
		var s unix.Statfs_t
		if err := unix.Statfs(dir, &s); err != nil || seen[s.Fsid] {
			continue
		}
		seen[s.Fsid] = true
		free, size := s.Bavail*uint64(s.Bsize), s.Blocks*uint64(s.Bsize)
		r.Fact(GroupDisk, fmt.Sprintf("%s: %s of %s free", name, humanize.IBytes(free), humanize.IBytes(size)))
		for _, f := range diskFaults(name, free, size, uint64(s.Ffree), uint64(s.Files)) {
			f.Subject = dir
			r.Add(f)
		}
	}
}

// leastFree is the minimum free space for pushes and packs, in bytes.
const leastFree = 1 << 30

// diskFaults returns findings about a file system. Some file systems have no number of inodes.
func diskFaults(name string, free, size, inodesFree, inodes uint64) (list []Finding) {
	if free < leastFree || free < size/50 {
		list = append(list, Finding{Group: GroupDisk, Severity: Problem, Kind: "space",
			Text:   fmt.Sprintf("%s of %s are free for the %s", humanize.IBytes(free), humanize.IBytes(size), name),
			Advice: "free some; a full disk refuses pushes and turns the cache off (cache.max_bytes bounds that)"})
	}
	if inodes > 0 && (inodesFree < 10_000 || inodesFree < inodes/50) {
		list = append(list, Finding{Group: GroupDisk, Severity: Problem, Kind: "inodes",
			Text:   fmt.Sprintf("%d of %d inodes are free for the %s", inodesFree, inodes, name),
			Advice: "remove files, or pack the loose objects of large repositories (packhorse repo maintain)"})
	}
	return list
}

// maxSkew is the maximum difference between a file's time and the clock.
const maxSkew = 2 * time.Second

// Clock examines this machine's clock, and that of the file system below dir.
func Clock(dir string, r *Report) {
	switch synchronised, known := clockState(); {
	case known && synchronised:
		r.Fact(GroupClock, "synchronised")
	case known:
		r.Fact(GroupClock, "not synchronised, according to the kernel")
		r.Add(Finding{Group: GroupClock, Severity: Hint, Kind: "unsynchronised",
			Text:   "the kernel reports that the clock is not synchronised: tokens and certificates expire by it",
			Advice: "run chrony or systemd-timesyncd; in a container check the host's clock"})
	}
	if skew, ok := fileSkew(dir); ok && skew.Abs() > maxSkew {
		r.Add(Finding{Group: GroupClock, Severity: Problem, Kind: "skew", Subject: dir,
			Text:   fmt.Sprintf("the file system's clock differs from this machine's by %v", skew.Round(time.Millisecond)),
			Advice: "synchronise the clocks of this machine and of the file server: changes may be noticed late"})
	}
}
