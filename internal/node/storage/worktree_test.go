package storage_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

func (r *root) same(path string) {
	r.t.Helper()
	if !r.asGit(path) {
		r.t.Errorf("%s is not served", path)
	}
}

// TestWorktreesAndSubmodules serves the repository that a ".git" file names, with the refs that git sees there.
func TestWorktreesAndSubmodules(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			r := newRoot(t, storage.Options{})
			main := r.repo("app.git", "one", "--object-format="+format)
			two := main.Commit("two")
			main.Git("worktree", "add", "-q", "-b", "side", filepath.Join(r.dir, "trees/side"))
			tree := gittest.At(t, filepath.Join(r.dir, "trees/side"))
			steps := func(path string, repo *gittest.Repo) {
				t.Helper()
				r.same(path)
				repo.Git("update-ref", "refs/bisect/bad", two.String())
				repo.Git("update-ref", "refs/worktree/w", two.String())
				r.same(path)
				repo.Git("update-ref", "-d", "refs/bisect/bad")
				repo.Git("pack-refs", "--all")
				r.same(path)
				repo.Git("update-ref", "--no-deref", "HEAD", two.String())
				r.same(path)
			}
			steps("trees/side", tree)
			steps("trees/side/.git", tree)
			r.same("app.git")
			tree.Git("config", "transfer.hideRefs", "refs/heads/main")
			r.same("trees/side")
			tree.Git("config", "--unset", "transfer.hideRefs")
			tree.Git("config", "extensions.worktreeConfig", "true")
			tree.Git("config", "--worktree", "transfer.hideRefs", "refs/heads/side")
			r.same("trees/side")
			r.same("app.git")
			// Of a worktree there is no way by its git directory, whatever git would take.
			r.refuses("app.git/worktrees/side", fault.NotFound, "no such repository")

			main.Git("worktree", "remove", "--force", tree.Dir)
			r.refuses("trees/side", fault.NotFound, "")

			gittest.Run(t, r.dir, "", "init", "-q", "--object-format="+format, "super")
			super := gittest.At(t, filepath.Join(r.dir, "super"))
			super.Git("submodule", "-q", "add", main.Dir, "deps/app")
			steps("super/deps/app", gittest.At(t, filepath.Join(super.Dir, "deps/app")))
			r.same("super")
			r.refuses("super/.git/modules/deps/app", fault.NotFound, "no such repository")
		})
	}
}

// TestGitFilesChange changes the file that names the git directory, and what it names, under an open handle.
func TestGitFilesChange(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{})
	one, two := r.repo("one.git", "one"), r.repo("two.git", "two")
	for range 10 { // within one tick of the clock, too
		r.write("w/.git", "gitdir: ../one.git\n")
		r.serves("w", one.ID("main"))
		r.write("w/.git", "gitdir: ../two.git\n") // the same size
		r.serves("w", two.ID("main"))
	}
	r.write("w/.git", "gitdir: "+one.Dir+"\r\n\n")
	r.same("w")
	r.do(os.Symlink("one.git", filepath.Join(r.dir, "link")))
	r.write("w/.git", "gitdir: ../link")
	r.serves("w", one.ID("main"))
	r.do(errors.Join(os.Remove(filepath.Join(r.dir, "link")), os.Symlink("two.git", filepath.Join(r.dir, "link"))))
	r.serves("w", two.ID("main"))
	r.do(os.Remove(filepath.Join(r.dir, "w/.git")))
	r.refuses("w", fault.NotFound, "")
	work := r.repo("w/.git", "three")
	r.serves("w", work.ID("main"))

	// A commondir that appears in a bare repository, changes and goes.
	r.serves("one", one.ID("main"))
	r.write("one.git/commondir", "../two.git\n")
	r.same("one.git")
	r.serves("one", two.ID("main"))
	r.write("one.git/commondir", "../w/.git\n")
	r.same("one.git")
	r.do(os.Remove(filepath.Join(one.Dir, "commondir")))
	r.same("one.git")
	r.serves("one", one.ID("main"))

	// One named DIR.git, one found before it.
	r.write("named.git", "gitdir: one.git\n")
	r.serves("named", one.ID("main"))
	r.write("named", "gitdir: two.git\n")
	r.serves("named", two.ID("main"))
	inner := r.repo("deep.git/.git", "inner")
	r.serves("deep", inner.ID("main"))
}

// TestGitFilesThatLeadAway refuses targets outside the root or in a hidden directory, loops, and files of other
// formats.
func TestGitFilesThatLeadAway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := newRoot(t, storage.Options{Root: dir, Hidden: []string{filepath.Join(dir, "state")}})
	r.repo("in.git", "in")
	r.repo("state/hidden.git", "hidden")
	outside := gittest.Init(t)
	r.do(os.Symlink(outside.Dir, filepath.Join(dir, "out")))
	r.do(os.Symlink("knot", filepath.Join(dir, "knot")))
	const away, none = "outside the served root", "does not exist"
	for name, test := range map[string]struct {
		text string
		kind fault.Kind
		says string
	}{
		"absolute":        {"gitdir: " + outside.Dir + "\n", fault.Denied, away},
		"no such thing":   {"gitdir: /nowhere\n", fault.Denied, away},
		"relative":        {"gitdir: ../../../../../../../.." + outside.Dir, fault.Denied, away},
		"by a link":       {"gitdir: ../out", fault.Denied, away},
		"hidden":          {"gitdir: ../state/hidden.git", fault.Denied, away},
		"hidden, missing": {"gitdir: ../state/no.git", fault.Denied, away},
		"loop":            {"gitdir: ../knot", fault.Unavailable, "cannot follow"},
		"itself":          {"gitdir: .git", fault.NotFound, "not a repository"},
		"missing":         {"gitdir: ../no.git", fault.NotFound, none},
		"plain directory": {"gitdir: ..", fault.NotFound, "not a repository"},
		"file":            {"gitdir: ../in.git/config", fault.NotFound, "not a repository"},
		"below a file":    {"gitdir: ../in.git/HEAD/x", fault.NotFound, none},
		"nothing":         {"", fault.Corrupt, "gitdir: PATH"}, "no path": {"gitdir: \n", fault.Corrupt, "gitdir: PATH"},
		"junk":      {"junk\n", fault.Corrupt, "gitdir: PATH"},
		"zero byte": {"gitdir: a\x00b", fault.Corrupt, "contains a NUL byte"},
		"long":      {"gitdir: " + strings.Repeat("x", 1<<20), fault.Corrupt, "longer than"},
		"long name": {"gitdir: " + strings.Repeat("x", 300), fault.Unavailable, "cannot follow"},
	} {
		path := strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), ",", "")
		r.write(path+"/.git", test.text)
		r.refuses(path, test.kind, test.says)
		if test.says == away {
			r.write(path+".git/commondir", strings.TrimPrefix(test.text, "gitdir: "))
			r.write(path+".git/HEAD", "ref: refs/heads/main\n")
			r.do(os.RemoveAll(filepath.Join(dir, path)))
			_, err := r.refs(path)
			if !fault.Is(err, fault.Denied) && !fault.Is(err, fault.NotFound) {
				t.Errorf("a commondir, %s: %v", name, err)
			}
			if err != nil && strings.Contains(fault.Message(err), outside.Dir) {
				t.Errorf("the client is told where things lie: %s", fault.Message(err))
			}
		}
	}
	r.write("to-a-file", "gitdir: to-another-file")
	r.write("to-another-file", "gitdir: in.git")
	r.refuses("to-a-file", fault.NotFound, "not a repository")
	r.write("readme", "no git directory: this is text\n")
	r.refuses("readme", fault.NotFound, "no repository readme here")
	r.write("in.git/inner", "gitdir: .")
	r.refuses("in.git/inner", fault.NotFound, "no such repository")
	r.do(os.Mkdir(filepath.Join(dir, "pipe"), 0o777))
	r.do(unix.Mkfifo(filepath.Join(dir, "pipe/.git"), 0o666))
	r.refuses("pipe", fault.NotFound, "no repository pipe here")
	r.do(os.Mkdir(filepath.Join(dir, "away"), 0o777))
	r.do(os.Symlink(filepath.Join(outside.Dir, "HEAD"), filepath.Join(dir, "away/.git")))
	r.refuses("away", fault.NotFound, "no such repository")
	r.repo("pipe2.git", "pipe")
	r.do(unix.Mkfifo(filepath.Join(dir, "pipe2.git/commondir"), 0o666))
	r.refuses("pipe2", fault.Corrupt, "commondir")
	r.write("in.git/commondir", strings.Repeat("y", 1<<20))
	r.refuses("in", fault.NotFound, "no repository in here")
}

// TestBorrowerWithoutItsLender names the problem of a repository, and serves it as soon as the problem is fixed.
func TestBorrowerWithoutItsLender(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	lender := r.repo("lender.git", "l")
	id := lender.ID("main")
	gittest.InitAt(t, filepath.Join(r.dir, "fork.git"))
	fork := gittest.At(t, filepath.Join(r.dir, "fork.git"))
	r.do(os.WriteFile(filepath.Join(fork.Dir, "objects/info/alternates"), []byte("../../lender.git/objects\n"), 0o600))
	fork.Git("update-ref", "refs/heads/main", id.String())
	r.serves("fork", id)
	r.key("fork", id)
	away := lender.Dir + ".away"
	r.do(os.Rename(lender.Dir, away))
	damaged := func(what string, err error) {
		t.Helper()
		if !fault.Is(err, fault.Corrupt) || !strings.Contains(fault.Message(err), "alternates") ||
			strings.Contains(fault.Message(err), r.dir) {
			t.Errorf("%s: %v; want Corrupt that says why and no path", what, err)
		}
		if err != nil && !strings.Contains(err.Error(), "lender.git") {
			t.Errorf("%s: the log is not told what is missing: %v", what, err)
		}
	}
	for _, session := range []node.Session{version2, {Version: protocol.V0, Stateless: true}} {
		request := pktline.AppendDelim(pktline.AppendLine(nil, "command=fetch"))
		request = pktline.AppendFlush(pktline.AppendLine(pktline.AppendLine(request, "want "+id.String()), "done"))
		if session.Version == protocol.V0 {
			request = pktline.AppendFlush(pktline.AppendLine(nil, "want "+id.String()+" side-band-64k"))
			request = pktline.AppendLine(request, "done")
		}
		_, err := r.UploadPack(t.Context(), r.path("fork"), session, bytes.NewReader(request), &answer{})
		damaged("a fetch", err)
	}
	_, err := r.Commit(t.Context(), r.path("fork"), "main")
	damaged("a look-up", err)
	r.do(os.Rename(away, lender.Dir))
	r.key("fork", id)
}
