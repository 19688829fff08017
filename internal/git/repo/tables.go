package repo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// ClassRefs is the class of git commands that list refs.
const ClassRefs process.Class = "refs"

const (
	// maxListing is the maximum size of git's list of a repository's refs in bytes: one to two million refs.
	maxListing = 128 << 20
	// versionAge is the time after which the version of a git that is too old is checked again.
	versionAge = 10 * time.Second
)

// tablesSince is the first git that knows reftables.
var tablesSince = [2]int{2, 45}

// Tables lists the refs of repositories with reftables by running git, once for each change of a repository. It is safe
// for concurrent use.
type Tables struct {
	runner *process.Runner

	mu      sync.Mutex
	known   bool // git is new enough
	tooOld  error
	checked time.Time // when tooOld was found
}

// NewTables creates a Tables that runs the git program of a runner with limits for ClassRefs.
func NewTables(runner *process.Runner) *Tables { return &Tables{runner: runner} }

// lister lists the refs of the repository with a git directory.
func (t *Tables) lister(gitDir string, format git.ObjectFormat) refs.Lister {
	return func(ctx context.Context, add func(refs.Ref)) error {
		if err := t.check(ctx); err != nil {
			return err
		}
		return t.list(ctx, gitDir, format, add)
	}
}

// list requests the refs from git upload-pack, like a client (gitprotocol-v2(5), "ls-refs"). One process lists all refs
// and HEAD, exactly as git shows them.
func (t *Tables) list(ctx context.Context, gitDir string, format git.ObjectFormat, add func(refs.Ref)) error {
	request := pktline.AppendLine(nil, "command=ls-refs")
	request = pktline.AppendDelim(pktline.AppendLine(request, "object-format="+format.String()))
	for _, argument := range []string{"peel", "symrefs", "unborn"} {
		request = pktline.AppendLine(request, argument)
	}
	config := []string{
		// The operator decides which repositories are served, so git must not check their owner. Git ignores this key
		// in a repository's own configuration.
		"safe.directory=*",
		"transfer.hideRefs=!refs", "transfer.hideRefs=!HEAD", // the Snapshot hides refs
		"lsrefs.unborn=advertise",
	}
	var args []string
	for _, setting := range config {
		args = append(args, "-c", setting)
	}
	return t.run(ctx, process.Command{
		Subcommand: "upload-pack",
		Repository: gitDir,
		Args:       append(args, "upload-pack", "--stateless-rpc", "--strict", gitDir),
		Env:        []string{"GIT_PROTOCOL=version=2"},
		Stdin:      bytes.NewReader(pktline.AppendFlush(request)),
	}, func(out io.Reader) error { return readRefs(out, format, add) })
}

// run passes the command's output to read, and returns the first error.
func (t *Tables) run(ctx context.Context, c process.Command, read func(io.Reader) error) error {
	c.Class = ClassRefs
	p, err := t.runner.Start(ctx, c)
	if err != nil {
		return err
	}
	readErr := read(p.Stdout())
	if readErr != nil {
		p.Kill()
	}
	if _, err := p.Wait(); err != nil && (readErr == nil || !fault.Is(err, fault.Cancelled)) {
		return cannotList(err)
	}
	return readErr
}

func cannotList(err error) error {
	kind := fault.KindOf(err)
	if kind != fault.Deadline && kind != fault.Unavailable {
		kind = fault.Internal
	}
	return &fault.Error{Kind: kind, Msg: "git cannot list the repository's refs", RetryAfter: fault.RetryAfter(err),
		Err: err}
}

// readRefs reads the response to ls-refs.
func readRefs(out io.Reader, format git.ObjectFormat, add func(refs.Ref)) error {
	limited := &io.LimitedReader{R: out, N: maxListing}
	r := pktline.NewReader(limited)
	for {
		typ, line, err := r.Line()
		switch {
		case err != nil && limited.N == 0:
			return fault.New(fault.Unavailable,
				"the repository has too many refs: their list is longer than %d bytes", maxListing)
		case err != nil:
			return cannotList(fmt.Errorf("its response ends early: %w", err))
		case typ == pktline.Flush:
			_, err := io.Copy(io.Discard, limited)
			return err
		case typ != pktline.Data:
			return cannotList(errors.New("its response has a packet that does not belong to ls-refs"))
		}
		ref, err := parseRef(string(line), format)
		if err != nil {
			return cannotList(err)
		}
		if !ref.ID.IsZero() || ref.Name == git.HEAD { // git shows some broken refs, with null IDs
			add(ref)
		}
	}
}

// parseRef reads one line of a response to ls-refs: "<object ID or unborn> SP <name>" and attributes.
func parseRef(line string, format git.ObjectFormat) (refs.Ref, error) {
	bad := func(err error) (refs.Ref, error) {
		return refs.Ref{}, fmt.Errorf("invalid ref line %.200q: %w", line, err)
	}
	id, rest, _ := strings.Cut(line, " ")
	name, attributes, _ := strings.Cut(rest, " ")
	ref := refs.Ref{Name: git.RefName(name), PeelKnown: true}
	if name != string(git.HEAD) && !git.IsSafeRefName(name) {
		return bad(errors.New("invalid ref name"))
	}
	var err error
	if id != "unborn" {
		if ref.ID, err = parseID(id, format); err != nil {
			return bad(err)
		}
	}
	for attribute := range strings.FieldsSeq(attributes) {
		if target, ok := strings.CutPrefix(attribute, "symref-target:"); ok {
			if ref.Target, err = git.ParseRefName(target); err != nil {
				return bad(err)
			}
		}
		if peeled, ok := strings.CutPrefix(attribute, "peeled:"); ok {
			if ref.Peeled, err = parseID(peeled, format); err != nil {
				return bad(err)
			}
		}
	}
	return ref, nil
}

func parseID(text string, format git.ObjectFormat) (git.ObjectID, error) {
	id, err := git.ParseObjectID(text)
	if err == nil && id.Format() != format {
		err = errors.New("an object ID of the other format")
	}
	if err != nil || id.IsZero() { // git uses null IDs for broken refs
		return git.ObjectID{}, err
	}
	return id, nil
}

// check checks that git supports reftables. A git that is too old is checked again after a while, because it may have
// been replaced. Concurrent calls each run their own check.
func (t *Tables) check(ctx context.Context) error {
	t.mu.Lock()
	known := t.known || t.tooOld != nil && time.Since(t.checked) < versionAge
	tooOld := t.tooOld
	t.mu.Unlock()
	if known {
		return tooOld
	}
	var text []byte
	err := t.run(ctx, process.Command{Subcommand: "version", Args: []string{"version"}},
		func(out io.Reader) (err error) {
			text, err = io.ReadAll(io.LimitReader(out, 1000))
			return err
		})
	if err != nil {
		return err
	}
	version := strings.TrimPrefix(strings.TrimSpace(string(text)), "git version ")
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known = knowsTables(version); t.known {
		t.tooOld = nil
		return nil
	}
	t.checked = time.Now()
	t.tooOld = fault.New(fault.Unavailable,
		"this repository's refs are stored as reftables, which git reads from version %d.%d on; the server has git %.40s",
		tablesSince[0], tablesSince[1], version)
	return t.tooOld
}

// knowsTables reports whether a git of this version, such as "2.47.3" or "2.50.GIT", supports reftables.
func knowsTables(version string) bool {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	x, err := strconv.Atoi(major)
	y, minorErr := strconv.Atoi(minor)
	return err == nil && minorErr == nil && (x > tablesSince[0] || x == tablesSince[0] && y >= tablesSince[1])
}
