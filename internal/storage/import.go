package storage

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// ClassUpstream is the class of git commands that fetch from another server: as long as that takes.
const ClassUpstream process.Class = "upstream"

// Import says where a repository comes from.
type Import struct {
	// Source is an absolute path, of a repository or a bundle, or a URL (http, https, ssh). Whose it is is not asked: whoever may name it may
	// have the node read what its user can read and reach.
	Source string
	// Check refuses objects that git fsck does.
	Check bool
	// Progress gets what git says, as Command.Stderr of package process; nil: git says nothing.
	Progress func([]byte)
	// Environ is what ssh needs of its user's environment, as HOME=.
	Environ []string
}

// importable are the transports of git that are used, by the scheme of a URL. A redirect leads to none other.
var importable = map[string]string{"http": "http:https", "https": "https", "ssh": "ssh"}

// transports are the transports for a source.
func (i Import) transports() (string, error) {
	if strings.ContainsFunc(i.Source, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", fault.New(fault.Invalid, "the source has control characters")
	}
	if filepath.IsAbs(i.Source) {
		if _, err := os.Stat(i.Source); err != nil {
			return "", fault.Wrap(fault.NotFound, "cannot find "+i.Source, err)
		}
		return "file", nil
	}
	u, err := url.Parse(i.Source)
	switch {
	case err != nil || importable[u.Scheme] == "":
		return "", fault.New(fault.Invalid, "the source is the path of a repository or a bundle, or a URL: https://, http:// or ssh://")
	case u.Host == "" || u.Host[0] == '-':
		return "", fault.New(fault.Invalid, "the source names no host")
	case u.User != nil:
		if _, has := u.User.Password(); has {
			return "", fault.New(fault.Invalid, "a password in a URL is seen by everybody on this machine: "+
				"clone the repository (git clone --mirror) and import the clone")
		}
	}
	return importable[u.Scheme], nil
}

// Import makes a repository of what another one has: all its refs, and HEAD. It is there whole or not at all, and on disk when this returns
// without an error, with nothing of the other's configuration. The errors are those of Create, and Corrupt if it was refused for its objects.
func (n *Node) Import(ctx context.Context, path git.RepoPath, from Import) (d Description, err error) {
	defer func() { n.changedRepository("import", path, err) }()
	if n.runner == nil {
		return d, fault.New(fault.Unavailable, "this node makes no repositories")
	}
	name, err := newPath(path)
	if err != nil {
		return d, err
	}
	transports, err := from.transports()
	if err != nil {
		return d, err
	}
	if err := n.vacant(ctx, name); err != nil {
		return d, err
	}
	made, err := n.make(ctx, name, func(ctx context.Context, dir string) error { return n.fetch(ctx, dir, from, transports) })
	if !made {
		return d, err
	}
	n.RefsChanged(path)
	if err != nil {
		return d, err
	}
	d, err = n.Describe(ctx, name)
	return d, fault.Wrap(fault.KindOf(err), "the repository is made, but cannot be described", err)
}

// keepFresh is how often what is on its way for long shows that it is.
const keepFresh = leftOver / 6

// fetch makes dir a copy of what is elsewhere.
func (n *Node) fetch(ctx context.Context, dir string, from Import, transports string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // or another process would take it for something left over
		for tick := time.NewTicker(keepFresh); ; {
			select {
			case now := <-tick.C:
				_ = os.Chtimes(filepath.Dir(dir), now, now)
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
	}()
	settings := filepath.Join(filepath.Dir(dir), "config") // a local source is read by a git of its own, which sees no other settings
	if err := os.WriteFile(settings, []byte("[safe]\n\tdirectory = *\n"), 0o600); err != nil {
		return cannotMake(err)
	}
	strict, progress := "false", "--quiet"
	if from.Check {
		strict = "true"
	}
	if from.Progress != nil {
		progress = "--progress"
	}
	env := append([]string{"GIT_CONFIG_GLOBAL=" + settings, "GIT_ALLOW_PROTOCOL=" + transports}, from.Environ...)
	run := func(args ...string) error {
		return n.git(ctx, process.Command{Class: ClassUpstream, Subcommand: args[0], Env: env, Stderr: from.Progress, Grace: maintainGrace,
			Dir: filepath.Dir(dir), Repository: dir, Args: append([]string{"-c", "transfer.fsckObjects=" + strict, "-c", "core.fsync=all"}, args...)})
	}
	if err := run("clone", "--mirror", "--no-local", "--template=", progress, "--end-of-options", from.Source, dir); err != nil {
		return fault.Wrap(fault.KindOf(err), "cannot get the repository", err)
	}
	env = append(env, "GIT_DIR="+dir)
	if from.Check && transports == "file" { // git looks at what comes from a bundle not at all
		if err := run("fsck", "--full", "--no-dangling", "--no-progress"); err != nil {
			return fault.Wrap(fault.Corrupt, "git fsck refuses the repository", err)
		}
	}
	for _, args := range [][]string{
		{"config", "--remove-section", "remote.origin"},
		{"repack", "-a", "-d", "-q", "-n", "--write-midx", "--write-bitmap-index"},
		{"commit-graph", "write", "--reachable", "--split", "--no-progress"},
		{"pack-refs", "--all"},
	} {
		if err := run(args...); err != nil {
			return err
		}
	}
	return syncTree(dir)
}
