package repo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

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
)

// Tables lists the refs of repositories with reftables by running git, once for each change of a repository. It is safe
// for concurrent use.
type Tables struct{ runner *process.Runner }

// NewTables creates a Tables that runs the git program of a runner with limits for ClassRefs.
func NewTables(runner *process.Runner) *Tables { return &Tables{runner} }

// lister lists the refs of the repository with a git directory.
func (t *Tables) lister(gitDir string, format git.ObjectFormat) refs.Lister {
	return func(ctx context.Context, add func(refs.Ref)) error {
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
	p, err := t.runner.Start(ctx, process.Command{
		Class:      ClassRefs,
		Subcommand: "upload-pack",
		Repository: gitDir,
		Args:       append(args, "upload-pack", "--stateless-rpc", "--strict", gitDir),
		Env:        []string{"GIT_PROTOCOL=version=2"},
		Stdin:      bytes.NewReader(pktline.AppendFlush(request)),
	})
	if err != nil {
		return err
	}
	readErr := readRefs(p.Stdout(), format, add)
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
