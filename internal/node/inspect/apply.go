package inspect

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/merge"
	"github.com/packhorse-git/packhorse/internal/node/scratch"
	"github.com/packhorse-git/packhorse/internal/node/write"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// ApplyRequest requests commits from a diff or a mailbox.
type ApplyRequest struct {
	Patch []byte
	// Header is that of the commit of a diff. The commits of mails have their own authors and messages, and the committer
	// if HasCommitter is set. Otherwise it is their author. Only the last commit has the key.
	Header       edit.Header
	HasCommitter bool
	Caller       balance.Caller
	// Check returns an error unless the caller may read existing blobs. Git takes the result of a binary patch from them.
	// Nil: the caller may read all.
	Check func(ctx context.Context, s write.State, ids []git.ObjectID) error
}

// Applied is the result of a patch.
type Applied struct {
	Tree      git.ObjectID   // of the last commit
	Commits   []git.ObjectID // the first one first; none with conflicts
	Objects   []*write.Object
	Conflicts []merge.Conflict // of the first mail that does not apply
}

// patchFile is a patch of one commit.
type patchFile struct {
	path              string
	author, committer string
	message           []byte
}

// Apply makes commits on top of a commit; zero: without a parent. A patch is merged (git apply --3way) if the
// repository has the blobs that it names. A patch without an effect makes no commit, as in git am. Errors: Invalid with
// the field "patch" if it is not a patch, or has a path that Git does not allow. Precondition: all patches are applied
// already.
func (i *Inspector) Apply(ctx context.Context, s write.State, base git.ObjectID, q *ApplyRequest) (made Applied,
	err error) {
	if err := i.check(); err != nil {
		return made, err
	}
	d, err := i.Space.Open(s.Repo())
	if err != nil {
		return made, err
	}
	defer d.Close()
	a := &applier{&Call{i, ctx, s.Repo(), q.Caller, d.Env(), nil}, d, q}
	files, err := a.split()
	if err != nil {
		return made, fault.InField("patch", err)
	}
	if !base.IsZero() {
		if err := d.Copy(s, base); err != nil {
			return made, err
		}
		if _, err := a.text(command{name: "read-tree", args: []string{base.String()}}); err != nil {
			return made, err
		}
	}
	if made.Tree, err = a.tree(); err != nil {
		return made, err
	}
	trees := []git.ObjectID{}
	for n, f := range files {
		if err := a.checkBlobs(s, f.path); err != nil {
			return made, fault.InField("patch", err)
		}
		if made.Conflicts, err = a.apply(f.path); err != nil || len(made.Conflicts) > 0 {
			return Applied{Conflicts: made.Conflicts}, err
		}
		tree, err := a.tree()
		if err != nil {
			return made, err
		}
		if tree == made.Tree {
			continue
		}
		h := q.Header
		h.Author, h.Committer, h.Message = f.author, f.committer, f.message
		if n < len(files)-1 {
			h.Key = edit.Key{}
		}
		var parents []git.ObjectID
		if !base.IsZero() {
			parents = []git.ObjectID{base}
		}
		commit, err := h.Commit(s.Repo().Format, tree, parents...)
		if err != nil {
			return made, err
		}
		trees, base, made.Tree = append(trees, tree), commit.ID, tree
		made.Commits, made.Objects = append(made.Commits, commit.ID), append(made.Objects, commit)
	}
	if len(trees) == 0 {
		return made, fault.InField("patch", fault.New(fault.Precondition, "it changes nothing: it is applied already"))
	}
	objects, err := d.Objects(trees...)
	made.Objects = append(made.Objects, objects...)
	return made, err
}

// applier applies the patches of a request in a scratch directory, which also has the index.
type applier struct {
	*Call
	dir *scratch.Dir
	q   *ApplyRequest
}

func (a *applier) tree() (git.ObjectID, error) {
	text, err := a.text(command{name: "write-tree"})
	if err != nil {
		return git.ObjectID{}, err
	}
	return git.ParseObjectID(text)
}

// mailStart is the beginning of a mailbox or a mail.
var mailStart = regexp.MustCompile(`(?i)^(From[ :]|(Subject|Date|Received|Return-Path|Message-ID):)`)

// split writes the patches to files.
func (a *applier) split() ([]patchFile, error) {
	if !mailStart.Match(a.q.Patch) {
		h := &a.q.Header
		return []patchFile{{filepath.Join(a.dir.Path, "patch"), h.Author, h.Committer, h.Message}},
			a.dir.Write("patch", a.q.Patch)
	}
	if n := bytes.Count(a.q.Patch, []byte("\nFrom ")); n > maxCommits {
		return nil, fault.New(fault.Invalid, "it has more than %d mails", maxCommits)
	}
	args := []string{"-b", "-o" + a.dir.Path} // -b: a mail without a line "From ID" is a mailbox, too
	if line, _, _ := bytes.Cut(a.q.Patch, []byte("\n")); !bytes.HasSuffix(line, []byte("\r")) {
		args = append(args, "--keep-cr") // these are of the files, and not of the transport
	}
	text, err := a.text(command{name: "mailsplit", args: args, input: a.q.Patch, cannot: invalid("it is not a mailbox")})
	if err != nil {
		return nil, err
	}
	count, err := strconv.Atoi(text)
	if err != nil {
		return nil, errOutput("mailsplit", "%.100q", text)
	}
	files := make([]patchFile, count)
	for n := range files {
		if files[n], err = a.mail(filepath.Join(a.dir.Path, fmt.Sprintf("%04d", n+1))); err != nil {
			return nil, fault.Wrap(fault.KindOf(err), fmt.Sprintf("mail %d: %s", n+1, fault.Message(err)), err)
		}
	}
	return files, nil
}

// invalid returns a command.cannot.
func invalid(problem string) func(string, string) error {
	return func(_, message string) error {
		return fault.New(fault.Invalid, "%s: %.300s", problem, strings.TrimSpace(message))
	}
}

// mail reads a mail (git-mailinfo(1)).
func (a *applier) mail(file string) (f patchFile, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return f, err
	}
	f.path = file + ".patch"
	info, err := a.text(command{name: "mailinfo", args: []string{file + ".message", f.path}, input: data})
	if err != nil {
		return f, err
	}
	body, err := os.ReadFile(file + ".message")
	if err != nil {
		return f, err
	}
	if patch, err := os.Stat(f.path); err != nil || patch.Size() == 0 {
		return f, fault.New(fault.Invalid, "it has no patch")
	}
	facts := make(map[string]string)
	for line := range strings.SplitSeq(info, "\n") {
		if name, value, ok := strings.Cut(line, ": "); ok && facts[name] == "" {
			facts[name] = value
		}
	}
	f.author, err = a.text(command{name: "var", args: []string{"GIT_AUTHOR_IDENT"}, cannot: invalid("its author or date"),
		env: []string{"GIT_AUTHOR_NAME=" + facts["Author"], "GIT_AUTHOR_EMAIL=" + facts["Email"],
			"GIT_AUTHOR_DATE=" + facts["Date"]}})
	if err != nil {
		return f, err
	}
	if f.committer = f.author; a.q.HasCommitter {
		f.committer = a.q.Header.Committer
	}
	message, err := a.text(command{name: "stripspace", input: []byte(facts["Subject"] + "\n\n" + string(body))})
	if err != nil {
		return f, err
	}
	f.message, err = edit.CheckMessage(message, nil)
	return f, err
}

var (
	binaryPatch = regexp.MustCompile(`(?m)^(GIT binary patch|(Binary files|Files) .* differ)$`)
	// resultLine is a line with the whole ID of a result.
	resultLine = regexp.MustCompile(`(?m)^index [^.\n]*\.\.([0-9a-fA-F]{40,64})( |$)`)
)

// checkBlobs checks the existing blobs that binary patches in a file name as their results.
func (a *applier) checkBlobs(s write.State, file string) error {
	patch, err := os.ReadFile(file)
	if err != nil || a.q.Check == nil {
		return err
	}
	var ids []git.ObjectID
	for part := range bytes.SplitSeq(patch, []byte("\ndiff --git ")) {
		if !binaryPatch.Match(part) {
			continue
		}
		for _, m := range resultLine.FindAllSubmatch(part, -1) {
			id, err := git.ParseObjectID(strings.ToLower(string(m[1])))
			if err != nil || id.Format() != a.repo.Format {
				continue
			}
			if has, err := a.repo.Objects.Has(id); err != nil {
				return err
			} else if has {
				ids = append(ids, id)
			}
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return a.q.Check(a.ctx, s, ids)
}

// maxReports is the maximum number of conflicts without stages.
const maxReports = 1000

// apply applies a patch to the index.
func (a *applier) apply(file string) (conflicts []merge.Conflict, err error) {
	report := ""
	// In spite of --cached, Git checks out a file that a patch creates and that exists, to merge it. This must happen in
	// an empty directory.
	work, err := os.MkdirTemp(a.dir.Path, "work-*")
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "cannot write to the state directory", err)
	}
	defer os.RemoveAll(work)
	_, err = a.text(command{name: "apply", args: []string{"--cached", "--3way", "--whitespace=nowarn", file}, dir: work,
		config: [][2]string{{"core.protectHFS", "true"}, {"core.protectNTFS", "true"}},
		cannot: func(status, message string) error {
			report = strings.ReplaceAll(message, file, "the patch")
			switch {
			case strings.Contains(message, "error: invalid path ") || strings.Contains(message, "beyond a symbolic link") ||
				strings.HasPrefix(message, "error: ") && status == "exit 128":
				return fault.InField("patch", fault.New(fault.Invalid, "git apply refuses it: %.500s", strings.TrimSpace(report)))
			case status == "exit 1":
				return fault.New(fault.Precondition, "the patch does not apply")
			}
			return nil
		}})
	if !fault.Is(err, fault.Precondition) {
		return nil, err
	}
	if conflicts, err = a.stages(report); err != nil || len(conflicts) > 0 {
		return conflicts, err
	}
	for line := range strings.Lines(report) {
		line, isError := strings.CutPrefix(strings.TrimSpace(line), "error: ")
		at := strings.LastIndex(line, ": ")
		if !isError || at < 0 || strings.HasPrefix(line, "patch failed: ") || len(conflicts) == maxReports {
			continue
		}
		conflicts = append(conflicts, merge.Conflict{Path: line[:at], Kinds: []string{"patch"}, Message: line[at+2:]})
	}
	if len(conflicts) == 0 {
		conflicts = []merge.Conflict{{Kinds: []string{"patch"}, Message: strings.TrimSpace(report)}}
	}
	return conflicts, nil
}

// stages returns the paths with conflicts in the index. The first one has the report of Git.
func (a *applier) stages(report string) (conflicts []merge.Conflict, err error) {
	text, err := a.text(command{name: "ls-files", args: []string{"-u", "-z"}})
	if err != nil {
		return nil, err
	}
	for text != "" {
		entry, rest, _ := strings.Cut(text, "\x00")
		path, side, stage, err := merge.ParseStage(entry)
		if err != nil {
			return nil, err
		}
		text = rest
		if n := len(conflicts); n == 0 || conflicts[n-1].Path != path {
			conflicts = append(conflicts, merge.Conflict{Path: path, Kinds: []string{"add/add"}, Message: report})
			report = ""
		}
		c := &conflicts[len(conflicts)-1]
		if c.Stages[side] = stage; side == 0 {
			c.Kinds[0] = "contents"
		}
	}
	return conflicts, nil
}
