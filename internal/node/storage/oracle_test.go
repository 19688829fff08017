package storage_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// lsRefs is a request for all that ls-refs can tell, or with prefixes for some of it.
func lsRefs(format string, prefixes ...string) []byte {
	request := pktline.AppendLine(nil, "command=ls-refs")
	request = pktline.AppendDelim(pktline.AppendLine(request, "object-format="+format))
	for _, line := range []string{"peel", "symrefs", "unborn"} {
		request = pktline.AppendLine(request, line)
	}
	for _, prefix := range prefixes {
		request = pktline.AppendLine(request, "ref-prefix "+prefix)
	}
	return pktline.AppendFlush(request)
}

// gitAnswers is what the program git's upload-pack answers to a request of protocol version 2 for a path.
func gitAnswers(t testing.TB, program, path string, request []byte) (string, error) {
	t.Helper()
	return uploadPack(t, program, path, "version=2", request)
}

func uploadPack(t testing.TB, program, path, version string, request []byte, flags ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(program, slices.Concat([]string{"upload-pack", "--stateless-rpc"}, flags, []string{path})...)
	cmd.Env = append(gittest.Env(), "GIT_PROTOCOL="+version)
	cmd.Stdin = bytes.NewReader(request)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Logf("git upload-pack %s: %v: %s", filepath.Base(path), err, errs.String())
	}
	return string(out), err
}

// advertisedRefs returns the refs and shallow commits of an advertisement of version 0: its lines, and the target of
// HEAD.
func advertisedRefs(t testing.TB, advertisement string) string {
	t.Helper()
	var refs strings.Builder
	r := pktline.NewReader(strings.NewReader(advertisement))
	for {
		typ, line, err := r.Line()
		if err != nil || typ != pktline.Data {
			if err != nil || typ != pktline.Flush {
				t.Errorf("an advertisement that ends in a packet of type %v, %v", typ, err)
			}
			return refs.String()
		}
		ref, capabilities, _ := strings.Cut(string(line), "\x00")
		if strings.HasPrefix(ref, strings.Repeat("0", 40)) { // broken, or none at all, which git says since 2.41 only
			continue
		}
		fmt.Fprintln(&refs, ref)
		for capability := range strings.FieldsSeq(capabilities) {
			if strings.HasPrefix(capability, "symref=") {
				fmt.Fprintln(&refs, capability)
			}
		}
	}
}

// advertisesAsGit compares the refs in our first response of version 0 with git's.
func (r *root) advertisesAsGit(program, path string, name git.RepoPath) {
	r.t.Helper()
	var ours answer
	_, err := r.Advertise(context.Background(), name, node.Session{Stateless: true}, &ours)
	theirs, gitErr := uploadPack(r.t, program, filepath.Join(r.dir, path), "", nil, "--advertise-refs")
	if (err == nil) != (gitErr == nil) {
		r.t.Errorf("%s in version 0: %v, git says %v", path, err, gitErr)
	} else if err == nil {
		if got, want := advertisedRefs(r.t, ours.String()), advertisedRefs(r.t, theirs); got != want {
			r.t.Errorf("%s in version 0:\n%s\nwant\n%s", path, got, want)
		}
	}
}

// brokenRef is how git shows a loose ref without an object ID in it: with a null one, at which its own clients give up.
// For us there is no such ref, as for git for-each-ref.
var brokenRef = regexp.MustCompile(`(?m)^[0-9a-f]{4}0{40,64} refs/.*\n`)

// asGit compares our answer to ls-refs, byte by byte, and our advertisement of version 0 with those of git for the same
// path. Where git refuses we have to.
func (r *root) asGit(path string) (served bool) {
	r.t.Helper()
	return r.asProgram("git", path)
}

func (r *root) asProgram(program, path string) (served bool) {
	r.t.Helper()
	format := "sha1"
	name, err := git.ParseRepoPath(path)
	r.do(err)
	var advertised answer
	if _, err := r.Advertise(context.Background(), name, version2, &advertised); err == nil &&
		strings.Contains(advertised.String(), "object-format=sha256") {
		format = "sha256"
	}
	r.advertisesAsGit(program, path, name)
	for _, prefixes := range [][]string{nil, {"HEAD"}, {"refs/heads/", "refs/bisect/"}} {
		request := lsRefs(format, prefixes...)
		var ours answer
		_, err := r.UploadPack(context.Background(), name, version2, bytes.NewReader(request), &ours)
		want, gitErr := gitAnswers(r.t, program, filepath.Join(r.dir, path), request)
		want = brokenRef.ReplaceAllString(want, "")
		if (err == nil) != (gitErr == nil) {
			r.t.Errorf("%s: %v, git says %v", path, err, gitErr)
		} else if err == nil && ours.String() != want {
			r.t.Errorf("%s, %q:\n%q\nwant\n%q", path, prefixes, ours.String(), want)
		}
		served = err == nil
	}
	return served
}

func (r *root) write(path, text string) {
	r.t.Helper()
	path = filepath.Join(r.dir, path)
	r.do(os.MkdirAll(filepath.Dir(path), 0o777))
	r.do(os.WriteFile(path, []byte(text), 0o666))
}

// TestRefsAsGit puts repositories into every state that HEAD and refs can be in.
func TestRefsAsGit(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			r := newRoot(t, storage.Options{})
			template := gittest.Init(t, "--object-format="+format)
			template.Git("update-ref", "refs/heads/main", template.Commit("one").String())
			template.Git("tag", "-a", "-m", "t", "v1", "main")
			template.Git("update-ref", "refs/heads/other", template.Commit("two").String())
			made := 0
			repo := func() (*gittest.Repo, string) {
				made++
				path := fmt.Sprintf("r%d.git", made)
				r.do(os.CopyFS(filepath.Join(r.dir, path), os.DirFS(template.Dir)))
				return gittest.At(t, filepath.Join(r.dir, path)), path
			}
			head := func(text string, served bool) {
				t.Helper()
				_, path := repo()
				r.asGit(path)
				r.write(path+"/HEAD", text)
				if r.asGit(path) != served {
					t.Errorf("HEAD %q: served is %v", text, !served)
				}
			}
			other, _ := repo()
			id := other.ID("main").String()
			head("ref: refs/heads/other\n", true)
			head("ref: refs/heads/unborn\n", true)
			head(id+"\n", true)
			head(strings.Repeat("1", len(id))+"\n", true) // detached at an object that is not there
			head("ref: refs/tags/v1", true)
			head("ref: refs/heads/..\n", true)
			head("ref: refs/heads/a b\n", true)
			head("ref: HEAD\n", false)
			head("ref: main\n", false)
			head("", false)
			head("junk\n", false)
			head(strings.Repeat("0", len(id)), true)
			head(id+"0\n", true)
			head(id[:39]+"\n", false)
			r.refsAsGit(repo)
			r.headLinksAsGit(repo)
		})
	}
}

// refsAsGit damages refs in many ways.
func (r *root) refsAsGit(repo func() (*gittest.Repo, string)) {
	r.t.Helper()
	for name, text := range map[string]string{
		"empty": "", "junk": "junk\n", "half": strings.Repeat("a", 20), "missing": strings.Repeat("1", 40) + "\n",
		"missing256": strings.Repeat("1", 64) + "\n", "null": strings.Repeat("0", 40) + "\n",
		"null256": strings.Repeat("0", 64) + "\n",
		"symref":  "ref: refs/heads/main\n", "dangling": "ref: refs/heads/nothing\n", "loop": "ref: refs/heads/loop\n",
		"tohead": "ref: HEAD\n", "badname": "ref: refs/heads/a..b\n", "outside": "ref: ../../x\n", "nowhere": "ref:",
		"name.lock": strings.Repeat("1", 40) + "\n", ".hidden": strings.Repeat("1", 40) + "\n",
		"a..b": strings.Repeat("1", 40) + "\n",
	} {
		made, path := repo()
		r.write(path+"/refs/heads/"+name, text)
		if !r.asGit(path) {
			r.t.Errorf("a ref that says %q ends the service", text)
		}
		made.Git("symbolic-ref", "HEAD", "refs/heads/symref")
		r.asGit(path)
		made.Git("pack-refs", "--all")
		r.asGit(path)
	}
	made, path := repo()
	for i, to := range []string{"main", "s0", "s1", "s2", "s3", "s4", "s5"} { // git follows five at most
		r.write(path+"/refs/heads/s"+string(rune('0'+i)), "ref: refs/heads/"+to+"\n")
		made.Git("symbolic-ref", "HEAD", "refs/heads/s"+string(rune('0'+i)))
		r.asGit(path)
	}
	made.Git("update-ref", "-d", "refs/heads/main")
	r.asGit(path)
}

// headLinksAsGit puts a symbolic link in HEAD's place, as very old repositories have it.
func (r *root) headLinksAsGit(repo func() (*gittest.Repo, string)) {
	r.t.Helper()
	for _, target := range []string{"refs/heads/main", "refs/heads/nothing", "../other/HEAD", "refs", "HEAD",
		"/etc/passwd"} {
		_, path := repo()
		head := filepath.Join(r.dir, path, "HEAD")
		r.do(os.Remove(head))
		r.do(os.Symlink(target, head))
		if served := r.asGit(path); served != strings.HasPrefix(target, "refs/") {
			r.t.Errorf("HEAD that links to %s: served is %v", target, served)
		}
	}
	made, path := repo()
	for _, ref := range []string{"main", "other"} {
		made.Git("update-ref", "-d", "refs/heads/"+ref)
	}
	made.Git("tag", "-d", "v1")
	if !r.asGit(path) {
		r.t.Error("an empty repository is not served")
	}
	r.do(os.Remove(filepath.Join(made.Dir, "HEAD")))
	if r.asGit(path) {
		r.t.Error("a repository without HEAD is served")
	}
}
