// Package inspect compares revisions, finds the origin of lines, and applies patches, all by Git. It runs in git
// directories of the server (package scratch), so that results depend on objects and options only: settings and
// attributes of the repository have no effect. Revisions are resolved before, as package lookup does. Git gets IDs.
//
// Commands have the slots and the time limit of Class. A command ends when its result has reached a limit, and with the
// context of its caller.
//
// The outputs of commands that read are cached in memory by object IDs and options, up to 1 MiB each and 64 MiB
// together. Equal calls for forks share them. Calls for a shallow repository are not cached.
package inspect

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	"github.com/packhorse-git/packhorse/internal/node/scratch"
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
}

// Inspector answers calls. It is safe for concurrent use.
type Inspector struct {
	Options
	cache *cache
}

// New creates an Inspector.
func New(o Options) *Inspector { return &Inspector{Options: o, cache: newCache()} }

// Call is a call for one repository. It is used by one goroutine. Errors of its methods: Invalid and NotFound name the
// field of the request. Exhausted, Deadline.
type Call struct {
	*Inspector
	ctx    context.Context
	repo   *repo.Repo
	caller balance.Caller
	env    []string      // of commands
	names  *lookup.Names // nil in Apply
}

// Call calls fn with a Call, which ends with fn.
func (i *Inspector) Call(ctx context.Context, r *repo.Repo, caller balance.Caller, fn func(*Call) error) error {
	if err := i.check(); err != nil {
		return err
	}
	names, err := i.Lookups.Names(ctx, r)
	if err != nil {
		return err
	}
	defer names.Close()
	return fn(&Call{i, ctx, r, caller, i.Space.Env(r), names})
}

// check returns an error if the server runs no commands for calls.
func (i *Inspector) check() error {
	if i.Space == nil || i.Runner == nil || i.Runner.Queue(Class) == nil {
		return fault.New(fault.Unavailable, "this node does not compare or change files")
	}
	return nil
}

// commit resolves a revision to a commit. The error names the field.
func (c *Call) commit(field, revision string) (git.ObjectID, error) {
	id, err := c.names.Commit(revision)
	return id, fault.InField(field, err)
}

// command is one run of Git.
type command struct {
	name   string   // subcommand
	args   []string // after it
	config [][2]string
	env    []string
	dir    string // "": /
	input  []byte
	// cannot returns the error for what Git reports when it ends with a status other than 0; nil: the usual one. It may be
	// nil.
	cannot func(status, message string) error
}

// run runs a command and calls read with its output; see process.Runner.Read.
func (c *Call) run(cmd command, read func(io.Reader) error) error {
	exit, err := c.Runner.Read(c.ctx, process.Command{
		Class: Class, Subcommand: cmd.name, Args: append([]string{cmd.name}, cmd.args...), Dir: cmd.dir,
		Env: slices.Concat(c.env, cmd.env), Config: cmd.config, Stdin: bytes.NewReader(cmd.input),
		Caller: c.caller, Repository: c.repo.Common, StdoutBuffer: 1 << 20,
	}, read)
	if cmd.cannot != nil && strings.HasPrefix(exit.Status, "exit ") {
		err = cmp.Or(cmd.cannot(exit.Status, exit.Message), err)
	}
	return err
}

// text runs a command and returns its output without a final newline.
func (c *Call) text(cmd command) (text string, err error) {
	err = c.run(cmd, func(out io.Reader) error {
		data, err := io.ReadAll(out)
		text = strings.TrimSuffix(string(data), "\n")
		return err
	})
	return text, err
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
