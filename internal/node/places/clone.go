package places

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// ClassUpstream is the class of Git commands that fetch from another server. They can take long.
const ClassUpstream process.Class = "upstream"

// ImportOptions configure an import.
type ImportOptions struct {
	// Source is the absolute path of a repository or a bundle, or a URL (http, https, ssh). The node reads it with its own
	// permissions, so only administrators may choose it.
	Source string
	// Check refuses objects that git fsck refuses.
	Check bool
	// Progress gets the output of Git, like Command.Stderr of package process; nil: Git is quiet.
	Progress func([]byte)
	// Environ has the environment variables that ssh needs, such as HOME.
	Environ []string
}

// importable has the allowed transports of Git, also after redirects, by the scheme of the URL.
var importable = map[string]string{"http": "http:https", "https": "https", "ssh": "ssh"}

// transports returns the allowed transports for the source.
func (o ImportOptions) transports() (string, error) {
	if strings.ContainsFunc(o.Source, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", fault.New(fault.Invalid, "source with control characters")
	}
	if filepath.IsAbs(o.Source) {
		if _, err := os.Stat(o.Source); err != nil {
			return "", fault.Wrap(fault.NotFound, "cannot find "+o.Source, err)
		}
		if marks, _ := FindMirrorMarks(o.Source, repo.Options{}); marks.Any() {
			return "", fault.New(fault.Denied, "%s is a mirror, and the import would have other readers: import it from its "+
				"origin, or make an ordinary repository of it (packhorse mirror detach)", o.Source)
		}
		return "file", nil
	}
	u, err := url.Parse(o.Source)
	switch {
	case err != nil || importable[u.Scheme] == "":
		return "", fault.New(fault.Invalid,
			"invalid source: use the absolute path of a repository or a bundle, or a URL with https://, http:// or ssh://")
	case u.Host == "" || u.Host[0] == '-':
		return "", fault.New(fault.Invalid, "source without a host")
	case u.User != nil:
		if _, has := u.User.Password(); has {
			return "", fault.New(fault.Invalid, "source with a password: all users of this machine could see it; "+
				"clone the repository (git clone --mirror) and import the clone")
		}
	}
	return importable[u.Scheme], nil
}

// touchInterval is how often a directory in use is touched.
const touchInterval = leftoverAge / 6

// Clone returns a function for Places.Import that creates a repository with all refs and HEAD of another one, but
// without its configuration. The error of the function is Corrupt if objects of the source are refused.
func Clone(runner *process.Runner, o ImportOptions) (fill func(ctx context.Context, dir string) error, err error) {
	transports, err := o.transports()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, dir string) error { return clone(ctx, runner, dir, o, transports) }, nil
}

// clone copies the source to dir.
func clone(ctx context.Context, runner *process.Runner, dir string, o ImportOptions, transports string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // otherwise another process could remove the directory as a leftover
		for tick := time.NewTicker(touchInterval); ; {
			select {
			case now := <-tick.C:
				_ = os.Chtimes(filepath.Dir(dir), now, now)
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
	}()
	// a local source is read by a Git process that sees only these settings
	settings := filepath.Join(filepath.Dir(dir), "config")
	if err := os.WriteFile(settings, []byte("[safe]\n\tdirectory = *\n"), 0o600); err != nil {
		return WriteError(err)
	}
	strict, progress := "false", "--quiet"
	if o.Check {
		strict = "true"
	}
	if o.Progress != nil {
		progress = "--progress"
	}
	env := append([]string{"GIT_CONFIG_GLOBAL=" + settings, "GIT_ALLOW_PROTOCOL=" + transports}, o.Environ...)
	run := func(args ...string) error {
		return runner.Run(ctx, process.Command{Class: ClassUpstream, Subcommand: args[0], Env: env, Stderr: o.Progress,
			Grace: MaintainGrace, Dir: filepath.Dir(dir), Repository: dir,
			Args: append([]string{"-c", "transfer.fsckObjects=" + strict, "-c", "core.fsync=all"}, args...)})
	}
	err := run("clone", "--mirror", "--no-local", "--template=", progress, "--end-of-options", o.Source, dir)
	if err != nil {
		return fault.Wrap(fault.KindOf(err), "cannot clone the repository", err)
	}
	env = append(env, "GIT_DIR="+dir)
	if o.Check && transports == "file" { // Git does not check objects from a bundle
		if err := run("fsck", "--full", "--no-dangling", "--no-progress"); err != nil {
			return fault.Wrap(fault.Corrupt, "git fsck refuses the repository", err)
		}
	}
	for _, args := range [][]string{
		{"config", "--remove-section", "remote.origin"},
		{"repack", "-a", "-d", "-q", "-n", "--write-midx", "--write-bitmap-index"},
		{"commit-graph", "write", "--reachable", "--changed-paths", "--split", "--no-progress"},
		{"pack-refs", "--all"},
	} {
		if err := run(args...); err != nil {
			return err
		}
	}
	return SyncTree(dir)
}
