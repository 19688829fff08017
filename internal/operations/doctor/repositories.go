package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// User is the user of the server process.
type User struct {
	UID    int
	Groups []int
	Name   string // for messages
	Login  string // login name; empty if it has none, as in a container
}

// Chown returns the command that makes the user the owner of a file, or of a directory and its content.
func (u *User) Chown(path string) string {
	return fmt.Sprintf("chown -R %s %s", ShellWord(cmp.Or(u.Login, strconv.Itoa(u.UID))), ShellWord(path))
}

// Bits of permissions.
const (
	mayRead  = 4
	mayWrite = 2
	mayEnter = 1
)

// may reports whether the user has all rights of mask on a file.
func (u *User) may(info fs.FileInfo, mask fs.FileMode) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok || u.UID == 0 {
		return true
	}
	perm := info.Mode().Perm()
	switch {
	case int(s.Uid) == u.UID:
		perm >>= 6
	case slices.Contains(u.Groups, int(s.Gid)):
		perm >>= 3
	}
	return perm&mask == mask
}

// RepositoryOptions configure an examination of repositories.
type RepositoryOptions struct {
	Root  string
	Open  repo.Options
	User  User
	Hooks receivepack.RepositoryHooks
	// Mirror returns why the repository of a mirror is refused; nil: it is not, or it is not a mirror. path is that
	// for clients, and dir is the Git directory. May be nil.
	Mirror   func(path, dir string) error
	Objects  int64           // number of objects from which indexes matter, by default 5000
	Deep     *process.Runner // runs Git with ClassDeep to look for missing objects; nil: only a quick look
	Progress func(done int)  // called from several goroutines; may be nil
}

// Limits for hints.
const (
	manyObjects = 5000
	manyPacks   = 50
	manyLoose   = 10_000
	maxEntries  = 20_000 // of a repository whose rights are checked
	future      = time.Minute
)

// Repositories examines repositories, a few at a time. paths are paths on disk below the root. It returns the number of
// examined repositories, and the error that ended the list.
func Repositories(ctx context.Context, paths func(func(string, error) bool), o RepositoryOptions,
	r *Report) (int, error) {
	work, done := make(chan string), atomic.Int64{}
	var examining sync.WaitGroup
	for range min(8, 2*runtime.GOMAXPROCS(0)) {
		examining.Go(func() {
			for path := range work {
				examine(ctx, path, &o, r)
				if n := int(done.Add(1)); o.Progress != nil {
					o.Progress(n)
				}
			}
		})
	}
	var failed error
	for path, err := range paths {
		if failed = errors.Join(err, ctx.Err()); failed != nil {
			break
		}
		work <- path
	}
	close(work)
	examining.Wait()
	return int(done.Load()), failed
}

// plainShell has the characters without a special meaning in any shell.
const plainShell = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@%+,"

// ShellWord returns a word of a command for advice, in quotes if necessary. Clients choose names of branches and, with
// the control API, of repositories: "a;reboot" is a valid one.
func ShellWord(s string) string {
	if s != "" && strings.Trim(s, plainShell) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// branchArgument returns the name of a branch as an argument: a name with a leading "-" would be an option.
func branchArgument(branch string) string {
	if strings.HasPrefix(branch, "-") {
		return "refs/heads/" + branch
	}
	return branch
}

// examination is the examination of one repository.
type examination struct {
	*RepositoryOptions
	report *Report
	path   string // below the root
	dir    string // the git directory, or the file that names it
}

func examine(ctx context.Context, path string, o *RepositoryOptions, r *Report) {
	x := &examination{o, r, path, filepath.Join(o.Root, filepath.FromSlash(path))}
	x.rights()
	x.hooks()
	x.mirror()
	opened, err := repo.Open(x.dir, o.Open)
	if err != nil {
		if !x.alternates(filepath.Join(x.dir, "objects")) || !strings.Contains(err.Error(), "alternates") {
			x.refused(err)
		}
		return
	}
	defer opened.Close()
	x.alternates(filepath.Join(opened.Common, "objects"))
	snap, err := opened.Refs.Snapshot(ctx)
	if err != nil {
		x.refused(err)
		return
	}
	x.head(snap)
	x.objects(ctx, opened)
	faults := x.packs(ctx, opened)
	if x.Deep != nil {
		x.inside()
		faults = x.checksums(ctx, opened) || faults
	}
	if !faults && !x.tips(snap, opened) && x.Deep != nil {
		x.connected(ctx, opened)
	}
}

func (x *examination) add(severity Severity, kind, text, advice string) {
	x.report.Add(Finding{Group: GroupRepositories, Severity: severity, Kind: kind, Subject: x.path, Text: text,
		Advice: advice})
}

// mirror finds a mirror that is refused.
func (x *examination) mirror() {
	if x.Mirror == nil {
		return
	}
	if err := x.Mirror(x.served(), x.dir); err != nil {
		advice := "packhorse mirror remove " + x.argument()
		if !fault.Is(err, fault.Corrupt) {
			advice += ", or restore its [[mirror]] table"
		}
		x.add(Problem, "mirror-refused", "it is a mirror, and requests are refused: "+err.Error(),
			advice+" (docs/how-to/mirror.md)")
	}
}

// served returns the path of the repository for clients.
func (x *examination) served() string {
	return strings.TrimSuffix(strings.TrimSuffix(x.path, "/.git"), ".git")
}

// argument returns the path as an argument of a command for advice. A leading "-" would make it an option.
func (x *examination) argument() string {
	path := x.served()
	if strings.HasPrefix(path, "-") {
		path = "/" + path
	}
	return ShellWord(path)
}

// refused adds a finding with the reason for which requests are refused.
func (x *examination) refused(err error) {
	text := fault.Message(err)
	switch {
	case strings.Contains(text, "includes another file"):
		x.add(Problem, "config-include",
			"its config includes another file, so requests are refused: that file might hide refs",
			"copy the settings into "+ShellWord(filepath.Join(x.dir, "config"))+", and remove include.path and includeIf.*.path")
	case strings.Contains(text, "http.uploadpack"):
		x.add(Hint, "turned-off", text, "remove http.uploadpack from its config to serve it")
	default:
		x.add(Problem, "refused", "requests are refused: "+err.Error(),
			"repair it, or restore it from a backup; run git fsck in "+ShellWord(x.dir))
	}
}

// head finds a HEAD whose branch does not exist although others do. Clones of such a repository check out nothing.
func (x *examination) head(snap *refs.Snapshot) {
	head := snap.Head()
	if head.Target == "" || !head.ID.IsZero() {
		return
	}
	var branches []string
	err := snap.Each("refs/heads/", func(ref refs.Ref) error {
		if branches = append(branches, strings.TrimPrefix(string(ref.Name), "refs/heads/")); len(branches) == 3 {
			return refs.ErrStop
		}
		return nil
	})
	if len(branches) == 0 || err != nil {
		return
	}
	x.add(Problem, "unborn-head",
		fmt.Sprintf("HEAD names %s, which does not exist, and there are other branches (%s): clones check out nothing",
			head.Target, strings.Join(branches, ", ")),
		fmt.Sprintf("packhorse repo set-head %s %s --root %s", x.argument(), ShellWord(branchArgument(branches[0])),
			ShellWord(x.Root)))
}

// alternates finds missing lenders and lenders outside the root, and reports whether there are any.
func (x *examination) alternates(objects string) (faults bool) {
	real, err := filepath.EvalSymlinks(objects)
	if err != nil {
		return false
	}
	lenders, err := pack.Alternates(real)
	if err != nil {
		x.add(Problem, "alternates", "cannot read objects/info/alternates: "+err.Error(), "look at "+
			ShellWord(filepath.Join(objects, "info/alternates")))
		return true
	}
	for _, lender := range lenders {
		if _, err := os.Stat(lender); err != nil {
			faults = true
			x.add(Problem, "missing-lender", fmt.Sprintf("it borrows objects from %s, which is missing (%s)", lender,
				errno(err)),
				"restore the lender, or correct "+ShellWord(filepath.Join(objects, "info/alternates")))
		} else if to, err := filepath.EvalSymlinks(lender); err == nil && !x.Open.Allows(to) {
			faults = true
			x.add(Problem, "lender-outside",
				fmt.Sprintf("it borrows objects from %s, which is not below the root, and requests are refused", lender),
				"move the lender below the root, or run git repack -a -d in the repository and remove objects/info/alternates")
		}
	}
	return faults
}

func errno(err error) error {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	return err
}

// objects finds causes of slow fetches.
func (x *examination) objects(ctx context.Context, r *repo.Repo) {
	c, err := r.Objects.Count(ctx)
	if err != nil {
		if ctx.Err() == nil {
			x.refused(err)
		}
		return
	}
	maintain := fmt.Sprintf("packhorse repo maintain %s --root %s", x.argument(), ShellWord(x.Root))
	lacks, many := []string{}, cmp.Or(x.Objects, manyObjects)
	if c.Packed >= many && !c.Bitmap && !r.Objects.HasAlternates() {
		lacks = append(lacks, "bitmap")
	}
	if c.Packed >= many && !c.CommitGraph {
		lacks = append(lacks, "commit-graph")
	}
	if len(lacks) > 0 {
		x.add(Hint, "no-"+lacks[0], fmt.Sprintf("it has %d objects and no %s: fetches take longer", c.Packed,
			strings.Join(lacks, " and no ")), maintain)
	}
	if c.Packs > manyPacks || c.Loose > manyLoose {
		x.add(Hint, "not-maintained", fmt.Sprintf("it has %d packs and %d loose objects: fetches take longer", c.Packs,
			c.Loose), maintain)
	}
}

// pushHooks are the files that git runs on pushes (githooks(5)).
var pushHooks = []repo.HookEvent{
	repo.PreReceive, repo.ProcReceive, repo.Update, repo.PushToCheckout, repo.ReferenceTransaction, repo.PostReceive,
	repo.PostUpdate,
}

// hooks finds hooks that do not run, because of the configuration or because they are not executable.
func (x *examination) hooks() {
	hooks, err := repo.PushHooks(x.dir, x.Open)
	if err != nil {
		return // which Open says, too
	}
	var all, denied []string
	for _, h := range hooks {
		all = append(all, h.Name)
		if info, err := os.Stat(h.File); err == nil && !x.User.may(info, mayRead|mayEnter) {
			denied = append(denied, h.File)
		}
	}
	switch names := strings.Join(all, ", "); {
	case len(all) == 0:
	case x.Hooks == receivepack.IgnoreHooks:
		x.add(Problem, "hook-not-run", "the server does not run the repository's own hooks: "+names,
			`remove them, move them to the directory that push.hooks_dir names, or set push.repository_hooks to "run" (docs/how-to/hooks.md)`)
	case x.Hooks == receivepack.RefuseHooks:
		x.add(Problem, "hook-refuses-pushes",
			"pushes are refused, because the server does not run the repository's own hooks: "+names,
			`remove them, move them to the directory that push.hooks_dir names, or set push.repository_hooks to "run" or "ignore" (docs/how-to/hooks.md)`)
	case len(denied) > 0:
		x.add(Problem, "hook-not-executable", fmt.Sprintf("hooks that %s may not execute do not run: %s", x.User.Name,
			strings.Join(denied, ", ")), "chmod a+rx "+ShellWord(denied[0]))
	}
	for _, event := range pushHooks {
		path := filepath.Join(x.dir, "hooks", string(event))
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 == 0 {
			x.add(Problem, "hook-not-executable", path+" is not executable, and does not run", "chmod a+rx "+ShellWord(path)+
				", or remove it")
		}
	}
}

// rights finds files that the server's user may not read or write, and files that everybody may write. A finding names
// the first file of each kind and their number.
func (x *examination) rights() {
	faults, chown := x.accessFaults(), x.User.Chown(x.dir)
	for _, f := range []struct{ kind, before, after, advice string }{
		{"not-readable", x.User.Name + " may not read ", ": fetches fail", chown + ", and chmod -R u+rX"},
		{"not-writable", x.User.Name + " may not write ", ": pushes and maintenance fail", chown + ", and chmod -R u+rwX"},
		{"world-writable", "everybody on this machine may write ", "", "chmod -R o-w " + ShellWord(x.dir)},
		{"future", "", " was changed in the future, as its time says",
			"correct the clocks of this machine and of the file server"},
	} {
		if paths := faults[f.kind]; len(paths) > 0 {
			files := paths[0]
			if len(paths) > 1 {
				files = fmt.Sprintf("%s and %d more", files, len(paths)-1)
			}
			x.add(Problem, f.kind, f.before+files+f.after, f.advice)
		}
	}
}

// accessFaults returns the files with faults of modes, owners and times, by kind.
func (x *examination) accessFaults() map[string][]string {
	faults := map[string][]string{}
	note := func(kind, path string) { faults[kind] = append(faults[kind], path) }
	entries, now := 0, time.Now()
	_ = filepath.WalkDir(x.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrPermission) {
				note("not-readable", path)
			}
			return nil
		}
		if entries++; entries > maxEntries {
			return fs.SkipAll
		}
		info, err := e.Info()
		if err != nil || e.Type()&fs.ModeSymlink != 0 {
			return nil
		}
		rel, _ := filepath.Rel(x.dir, path)
		loose := len(rel) > 10 && strings.HasPrefix(rel, "objects/") && rel[8] != 'p' && rel[8] != 'i'
		switch {
		case e.IsDir() && !x.User.may(info, mayRead|mayEnter), !e.IsDir() && !x.User.may(info, mayRead):
			if !strings.HasPrefix(rel, "hooks/") && !strings.HasPrefix(rel, "logs/") {
				note("not-readable", path)
			}
		case e.IsDir() && !x.User.may(info, mayWrite|mayEnter) && rel != "hooks" && rel != "branches":
			note("not-writable", path)
		}
		if info.Mode().Perm()&0o002 != 0 {
			note("world-writable", path)
		}
		if info.ModTime().Sub(now) > future {
			note("future", path)
		}
		if e.IsDir() && loose { // fan-out directories are many, and their objects alike
			return fs.SkipDir
		}
		return nil
	})
	return faults
}
