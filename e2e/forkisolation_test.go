package e2e

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	gitid "github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// access is a request for an object. {c} is a commit, {s} the beginning of its ID, {b} a blob in it, {g} a tag of it.
// The response to a caller of the repository that has them matches want, by default a status of 2xx.
type access struct{ method, path, body, want string }

// apiAccesses follow /-/api/v1/repos/NAME/.
var apiAccesses = []access{
	{"GET", "tree/{c}/", "", ""},
	{"GET", "raw/{c}/secret", "", "hunter2"},
	{"GET", "raw/{s}/secret", "", "hunter2"},
	{"GET", "log/{c}", "", ""},
	{"GET", "log/base?exclude={c}", "", ""},
	{"GET", "commit/{c}", "", ""},
	{"GET", "commit/{c}~0", "", ""},
	{"GET", "commit/{g}", "", ""},
	{"GET", "diff/{c}", "", "hunter2"},
	{"GET", "compare/base...{c}", "", "hunter2"},
	{"GET", "compare/{c}..base", "", "hunter2"},
	{"GET", "patches/base..{c}", "", "hunter2"},
	{"GET", "range-diff?old_base=base&old_tip={c}&new_base=base&new_tip={c}", "", ""},
	{"GET", "blame/{c}/secret", "", ""},
	{"GET", "last-commits/{c}/", "", ""},
	{"GET", "archive/{c}.tar", "", "hunter2"},
	{"GET", "merge-base?revisions=base&revisions={c}", "", ""},
	{"POST", "ahead-behind", `{"pairs":[{"left":"base","right":"{c}"}]}`, `"behind"`},
	{"POST", "is-ancestor", `{"pairs":[{"left":"base","right":"{c}"}]}`, `"is_ancestor"`},
	{"GET", "contains?revisions={c}", "", "refs/heads/main"},
	{"PUT", "branches/new", `{"new_oid":"{c}","expected":"absent"}`, ""},
	{"DELETE", "branches/new", `{"expected":"{c}"}`, ""},
	{"POST", "refs", `{"updates":[{"name":"refs/heads/taken","new_oid":"{c}"}]}`, ""},
	{"POST", "refs", `{"updates":[{"name":"refs/tags/tag","new_oid":"{g}"}]}`, ""},
	{"POST", "refs", `{"updates":[{"name":"refs/tags/blob","new_oid":"{b}"}]}`, ""},
	{"POST", "commits", `{"branch":"x","create":true,"start":"{c}","message":"x","dry_run":true,` +
		`"changes":[{"put":{"path":"x","text":"x"}}]}`, ""},
	{"POST", "commits", `{"branch":"base","message":"x","dry_run":true,"changes":[{"put":{"path":"x","oid":"{b}"}}]}`, ""},
	{"POST", "patches", `{"branch":"x","create":true,"start":"{c}","message":"x","dry_run":true,` +
		`"text":"diff --git a/x b/x\nnew file mode 100644\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+x\n"}`, ""},
	{"POST", "merges", `{"target":"base","source":"{c}","dry_run":true}`, ""},
	{"POST", "merges", `{"target":"base","source":"{c}","method":"SQUASH","dry_run":true}`, ""},
	{"POST", "merges", `{"target":"base","source":"{c}","method":"REBASE","dry_run":true}`, ""},
	{"POST", "merges", `{"target":"base","source":"{c}","method":"CHERRY_PICK","dry_run":true}`, ""},
	{"POST", "merges", `{"target":"main","source":"{c}","method":"REVERT","dry_run":true}`, ""},
	{"POST", "merges/check", `{"pairs":[{"target":"base","source":"{c}"}]}`, `"fast_forward":true`},
}

// TestForkIsolation has a caller of one member of a network try each object of another one by every route. All members
// share the objects: a later fork has them.
func TestForkIsolation(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"disk", "store"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newStepWorld(t, 1, name == "store")
			w.must(w.push(noFault, "app", "base", w.members["app"]["main"]))
			w.must(w.packhorse(noFault, "repo", "fork", "app", "fork"))
			for i, owner := range []string{"app", "fork"} {
				w.accesses(owner, []string{"fork", "app"}[i])
			}
		})
	}
}

func (w *stepWorld) must(out string, ok bool) {
	w.t.Helper()
	if !ok {
		w.t.Fatal(out)
	}
}

// accesses puts objects into one repository and tries them in another one.
func (w *stepWorld) accesses(owner, other string) {
	t := w.t
	text := "hunter2 of " + owner + "\n"
	base, blob := w.members["app"]["main"], w.client.Blob(text)
	commit := w.client.CommitTree("leak of "+owner, "100644 blob "+blob.String()+"\tsecret\n", base)
	w.client.Git("tag", "-f", "-a", "-m", "x", "v1", commit.String())
	tag := w.client.ID("v1")
	w.must(w.push(noFault, owner, "main", commit))
	w.must(w.command(noFault, gitPush(w, owner, tag.String()+":refs/tags/v1")))
	w.must(w.packhorse(noFault, "repo", "fork", owner, owner+"-later")) // the shared packs have all of it
	in := strings.NewReplacer("{c}", commit.String(), "{s}", commit.String()[:12], "{b}", blob.String(), "{g}",
		tag.String())
	tokens := map[string]string{}
	for _, name := range []string{owner, other} {
		tokens[name] = createToken(t, name, "--state", filepath.Join(w.dir, "state"), "--repo", name)
	}
	all := append([]access{{"GET", "/NAME/-/file/{c}/secret", "", "hunter2"},
		{"GET", "/NAME/-/archive/{c}.tar", "", "hunter2"},
		{"GET", "/-/api/v1/events?limit=1000", "", commit.String()}}, apiAccesses...)
	for _, r := range all {
		if !strings.HasPrefix(r.path, "/") {
			r.path = "/-/api/v1/repos/NAME/" + r.path
		}
		r.path, r.body = in.Replace(r.path), in.Replace(r.body)
		if r.want == "" {
			r.want = `^2`
		}
		want := regexp.MustCompile(r.want)
		for _, name := range []string{owner, other} {
			got := w.request(r.method, strings.ReplaceAll(r.path, "NAME", name), r.body, tokens[name])
			if want.MatchString(got) != (name == owner) || name == other && strings.Contains(got, "hunter2") {
				t.Errorf("%s %s %s of %s: %.400s", r.method, r.path, r.body, name, got)
			}
		}
	}
	search := func(name string) string {
		return w.request("GET", "/-/api/v1/search?q=hunter2", "", tokens[name])
	}
	gittest.WaitFor(t, "a search finds the blob", func() bool { return strings.Contains(search(owner), text[:9]) })
	if got := search(other); strings.Contains(got, "of "+owner) {
		t.Errorf("a search in %s: %s", other, got)
	}
	for name, isOwner := range map[string]bool{owner: true, other: false} {
		w.protocolAccesses(name, tokens[name], isOwner, base, commit, blob, text)
	}
}

// protocolAccesses are those of git's protocol: wants, and pushes that need an object.
func (w *stepWorld) protocolAccesses(name, token string, isOwner bool, base, commit, blob gitid.ObjectID, text string) {
	t := w.t
	for _, id := range []gitid.ObjectID{commit, blob} {
		_, err := clientGit(t, basicHeader("x", token), gittest.Init(t, "--bare").Dir, "fetch", "-q", w.server.http+"/"+name,
			id.String())
		if (err == nil) != isOwner {
			t.Errorf("fetch of %s from %s: %v", id, name, err)
		}
	}
	w.haves(name, token, isOwner, base, commit)
	tree := w.client.ID(commit.String() + "^{tree}")
	top := fmt.Sprintf("tree %s\nparent %s\nauthor A <a@localhost> 1700000000 +0000\n"+
		"committer A <a@localhost> 1700000000 +0000\n\non top\n", tree, base)
	delta := gittest.NewPackWriter(gitid.SHA1)
	delta.AddRefDelta(blob, []byte(text), []byte("a delta"))
	onTree := gittest.NewPackWriter(gitid.SHA1)
	onTree.Add(gitid.Commit, []byte(top))
	for what, push := range map[string]struct {
		id   gitid.ObjectID
		pack *gittest.PackWriter
	}{
		"ref":   {commit, gittest.NewPackWriter(gitid.SHA1)},
		"delta": {gittest.HashObject(gitid.SHA1, gitid.Blob, []byte("a delta")), delta},
		"tree":  {gittest.HashObject(gitid.SHA1, gitid.Commit, []byte(top)), onTree},
	} {
		ref := "refs/tags/" + what
		body := pktline.AppendFlush(pktline.Append(nil, fmt.Sprintf("%s %s %s\x00report-status", strings.Repeat("0", 40),
			push.id, ref)))
		got := w.service(name, token, "git-receive-pack", append(body, push.pack.Bytes()...))
		if strings.Contains(got, "ok "+ref) != isOwner {
			t.Errorf("a push of a %s to %s: %q", what, name, got)
		}
	}
}

// haves negotiates in both versions: a commit that only another member reaches is not acknowledged, an own one is. Its
// history is not sent to a client with that boundary either.
func (w *stepWorld) haves(name, token string, isOwner bool, base, commit gitid.ObjectID) {
	want, have := "want "+base.String(), "have "+commit.String()
	v2 := func(lines ...string) []byte {
		body := pktline.AppendDelim(pktline.AppendLine(nil, "command=fetch"))
		for _, line := range lines {
			body = pktline.AppendLine(body, line)
		}
		return pktline.AppendFlush(body)
	}
	v0 := pktline.AppendFlush(pktline.AppendLine(nil, want+" multi_ack_detailed side-band-64k"))
	for _, id := range []gitid.ObjectID{commit, base} {
		v0 = pktline.AppendLine(v0, "have "+id.String())
	}
	for version, body := range map[string][]byte{
		"2": v2(want, have, "have "+base.String()), "2, haves only": v2("wait-for-done", have, "have "+base.String()),
		"0": pktline.AppendFlush(v0),
	} {
		service := "git-upload-pack"
		if version == "0" {
			service += " version=0"
		}
		got := w.service(name, token, service, body)
		if strings.Contains(got, "ACK "+commit.String()) != isOwner || !strings.Contains(got, "ACK "+base.String()) {
			w.t.Errorf("version %s, haves in %s: %q", version, name, got)
		}
	}
	got := w.service(name, token, "git-upload-pack", v2(want, "shallow "+commit.String(), "deepen 2147483647", "done"))
	if strings.Contains(got, "unshallow "+commit.String()) != isOwner || !strings.Contains(got, "PACK") {
		w.t.Errorf("a foreign boundary in %s: %q", name, got)
	}
}

func gitPush(w *stepWorld, name string, args ...string) *exec.Cmd {
	return exec.Command("git", append([]string{"--git-dir=" + w.client.Dir, "push", "--quiet", w.server.http + "/" + name},
		args...)...)
}

// service sends a request of git's protocol. Its version may follow the name of the service, by default version=2.
func (w *stepWorld) service(name, token, service string, body []byte) string {
	path, _, _ := strings.Cut(service, " ")
	return w.request("POST "+service, "/"+name+"/"+path, string(body), token)
}

// request returns the status and the body of a response.
func (w *stepWorld) request(method, path, body, token string) string {
	w.t.Helper()
	method, service, _ := strings.Cut(method, " ")
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.server.http+path, bytes.NewReader([]byte(body)))
	if err != nil {
		w.t.Fatal(err)
	}
	r.SetBasicAuth("x", token)
	if service != "" {
		service, version, _ := strings.Cut(service, " ")
		r.Header.Set("Content-Type", "application/x-"+service+"-request")
		r.Header.Set("Git-Protocol", cmp.Or(version, "version=2"))
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return response.Status + "\n" + string(text)
}
