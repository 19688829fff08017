// Package inspect compares revisions, finds the origin of lines, and applies patches, all by Git. It runs in git
// directories of the server (package scratch), so that results depend on objects and options only: settings and
// attributes of the repository have no effect. Revisions are resolved before, as package lookup does. Git gets IDs.
//
// Commands have the slots and the time limit of Class. A command ends when its result has reached a limit, and with the
// context of its caller.
//
// The results of calls that read are cached in memory by object IDs and options, up to 1 MiB each and 64 MiB together.
// Equal calls for forks share them. Calls for a shallow repository are not cached.
package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	"github.com/packhorse-git/packhorse/internal/node/scratch"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// Class is the class of the Git commands.
const Class process.Class = "inspect"

const (
	maxCommits = 1000      // of a series that is formatted, compared or applied
	maxPath    = 64 << 10  // bytes
	piece      = 128 << 10 // bytes of a text that are sent at once
)

// Options configure an Inspector.
type Options struct {
	Runner  *process.Runner
	Space   *scratch.Space // nil: all calls are refused
	Lookups *lookup.Reader
	Memory  *admit.Budget // limits what long patches of files take together; nil: 512 MiB
}

// Inspector answers calls. It is safe for concurrent use.
type Inspector struct {
	Options
	cache *cache
}

// New creates an Inspector.
func New(o Options) *Inspector {
	if o.Memory == nil {
		o.Memory = admit.NewBudget("patches", lookup.DefaultMemory)
	}
	return &Inspector{Options: o, cache: newCache()}
}

// check returns an error if the server runs no commands for calls.
func (i *Inspector) check() error {
	if i.Space == nil || i.Runner == nil || i.Runner.Queue(Class) == nil {
		return fault.New(fault.Unavailable, "this node does not compare or change files")
	}
	return nil
}

// names begins a call.
func (i *Inspector) names(ctx context.Context, r *repo.Repo) (*lookup.Names, error) {
	if err := i.check(); err != nil {
		return nil, err
	}
	return i.Lookups.Names(ctx, r)
}

// command is one run of Git.
type command struct {
	name   string   // subcommand
	args   []string // after it
	config []string // KEY=VALUE
	env    []string
	dir    string // "": /
	input  []byte
	// cannot returns the error for what Git reports when it ends with a status other than 0; nil: the usual one. It may be
	// nil.
	cannot func(status, message string) error
}

// errEnough ends a command whose further output is not needed.
var errEnough = errors.New("enough")

// run runs a command and calls read with its output. The error of read is returned, except for errEnough and those of
// the output.
func (i *Inspector) run(ctx context.Context, r *repo.Repo, caller balance.Caller, c command,
	read func(io.Reader) error) error {
	if c.env == nil {
		c.env = i.Space.Env(r)
	}
	var args []string
	for _, setting := range c.config {
		args = append(args, "-c", setting)
	}
	var message bytes.Buffer
	const most = 4 << 10
	p, err := i.Runner.Start(ctx, process.Command{
		Class: Class, Subcommand: c.name, Args: append(append(args, c.name), c.args...), Env: c.env, Dir: c.dir,
		Stdin: bytes.NewReader(c.input), Caller: caller, Repository: r.Common, StdoutBuffer: 1 << 20,
		Stderr: func(b []byte) { message.Write(b[:min(len(b), most-message.Len())]) },
	})
	if err != nil {
		return err
	}
	out := &output{r: p.Stdout()}
	readErr := read(out)
	if readErr == nil {
		_, readErr = io.Copy(io.Discard, out)
	}
	if readErr != nil {
		p.Kill()
	}
	usage, err := p.Wait()
	switch {
	case errors.Is(readErr, errEnough):
		return nil
	case readErr != nil && (out.err == nil || out.err == io.EOF && !errors.Is(readErr, io.ErrUnexpectedEOF)):
		return readErr
	case err != nil && c.cannot != nil && strings.HasPrefix(usage.Exit, "exit "):
		if known := c.cannot(usage.Exit, message.String()); known != nil {
			return known
		}
		return err
	case err != nil:
		return err
	}
	return readErr
}

// output keeps the error of reading the output, which that of the command explains.
type output struct {
	r   io.Reader
	err error
}

func (o *output) Read(b []byte) (int, error) {
	n, err := o.r.Read(b)
	if err != nil {
		o.err = err
	}
	return n, err
}

// text runs a command and returns its output of at most limit bytes without a final newline.
func (i *Inspector) text(ctx context.Context, r *repo.Repo, caller balance.Caller, c command,
	limit int64) (text []byte, err error) {
	err = i.run(ctx, r, caller, c, func(out io.Reader) (err error) {
		text, err = io.ReadAll(io.LimitReader(out, limit))
		return err
	})
	return bytes.TrimSuffix(text, []byte("\n")), err
}

// errOutput is an output of Git that does not have the documented form.
func errOutput(c, format string, args ...any) error {
	return fault.New(fault.Internal, "git %s: invalid output: %s", c, fmt.Sprintf(format, args...))
}

// checkPath returns an error for a path that Git would not take as it is.
func checkPath(path string) error {
	if len(path) > maxPath {
		return fault.New(fault.Invalid, "a path of %d bytes is longer than %d", len(path), maxPath)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(path, "/"), "/") {
		if name == "" || name == "." || name == ".." || strings.Contains(name, "\x00") {
			return fault.New(fault.Invalid, `path %q is not valid: want names with "/" between them`, fault.Short(path))
		}
	}
	return nil
}

// resolve resolves a revision to a commit. The error names the field.
func resolve(n *lookup.Names, field, revision string) (git.ObjectID, error) {
	id, err := n.Commit(revision)
	return id, fault.InField(field, err)
}
