package remote_test

import (
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/gateway/remote"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/control"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// localNode is a node in the process of the gateway.
type localNode struct {
	router.Node
	remote.Local
}

// Answers are the same whether the node is in another process or in that of the gateway.
func TestAPI(t *testing.T) {
	t.Parallel()
	for name, isLocal := range map[string]bool{"remote": false, "local": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testAPI(t, isLocal)
		})
	}
}

func testAPI(t *testing.T, isLocal bool) {
	w := newWorld(t, options{})
	if isLocal {
		server := control.New(control.Options{Node: w.node, Lanes: lanes(1000, 1000), Log: w.logger(), Pump: w.pump})
		w.do(w.routes.Set([]router.Route{{Replicas: []*router.Replica{{Name: "local",
			Node:      localNode{w.node, remote.Local{Client: control.Local{Server: server}}},
			Revisions: storage.Resolver{Node: w.node}}}}}))
	}
	r := gittest.InitAt(t, w.root+"/team/app.git")
	blob := r.Blob("hello\n").String()
	tree := strings.TrimSpace(r.GitIn("100644 blob "+blob+"\ta.txt\n040000 tree "+strings.TrimSpace(
		r.GitIn("100644 blob "+blob+"\tb.txt\n", "mktree"))+"\tdir\n", "mktree"))
	var commits []string
	for _, message := range []string{"one", "two", "three"} {
		args := []string{"commit-tree", "-m", message, tree}
		if n := len(commits); n > 0 {
			args = append(args, "-p", commits[n-1])
		}
		commits = append(commits, strings.TrimSpace(r.Git(args...)))
	}
	r.Git("update-ref", "refs/heads/main", commits[2])
	r.Git("update-ref", "refs/heads/feature/x", commits[0])
	lost := strings.TrimSpace(r.Git("commit-tree", "-m", "secret", tree)) // no ref reaches it
	secret := r.Blob("secret").String()
	secretTree := strings.TrimSpace(r.GitIn("100644 blob "+secret+"\ta.txt\n", "mktree"))
	secretCommit := strings.TrimSpace(r.Git("commit-tree", "-m", "secret", secretTree))

	for _, test := range []struct {
		path   string
		status int
		want   string
	}{
		{"tree/main/", 200, `"path":"a.txt"`},
		{"tree/main/dir", 200, `"path":"b.txt"`},
		{"tree/feature/x/dir/", 200, `"path":"b.txt"`},
		{"tree/feature%2Fx/", 200, `"path":"a.txt"`},
		{"tree/main~1/dir", 200, `"path":"b.txt"`},
		{"tree/" + commits[1] + "/", 200, `"path":"a.txt"`},
		{"tree/" + commits[1][:10] + "/", 200, `"path":"a.txt"`},
		{"tree/" + tree + "/", 200, `"path":"a.txt"`},
		{"raw/main/dir/b.txt", 200, "hello\n"},
		{"commit/main", 200, `"message":"three\n"`},
		{"branches/feature/x", 200, commits[0]},
		{"branches", 200, `refs/heads/feature/x`},
		{"raw/main/dir", 400, `"kind":"invalid"`},
		{"raw/main/none", 404, `"kind":"not_found"`},
		{"tree/none/", 404, `"kind":"not_found"`},
		{"log/" + lost, 404, `no ref reaches`},
		{"log/" + lost[:12], 404, `no ref reaches`},
		{"log/main?exclude=" + lost, 404, `"field":"exclude[0]"`},
		{"commit/" + secretCommit, 404, `no ref reaches`},
		{"tree/" + secretTree + "/", 404, `no ref reaches`},
		{"raw/" + secretTree + "/a.txt", 404, `no ref reaches`},
		{"raw/" + secretCommit + "/a.txt", 404, `no ref reaches`},
		{"tree/main/?cursor=" + secretCommit + ":x", 404, `no ref reaches`},
	} {
		status, text := w.askAPI(t, test.path)
		if status != test.status || !strings.Contains(text, test.want) {
			t.Errorf("%s: %d %s\nwant %d %s", test.path, status, text, test.status, test.want)
		}
	}
	checkPages(t, w, commits)
	// a cursor with the token of another tree
	next := nextOf(w.getAPI(t, "tree/main/?limit=1"))
	commit, position, _ := strings.Cut(next, ":")
	token, err := base64.RawURLEncoding.DecodeString(position)
	w.do(err)
	id := git.MustParseObjectID(secretTree)
	copy(token[2:], id.Raw())
	token[len(token)-1] = 0 // from its first entry
	forged := commit + ":" + base64.RawURLEncoding.EncodeToString(token)
	if status, text := w.askAPI(t, "tree/main/?cursor="+forged); status != 400 || strings.Contains(text, secret) {
		t.Errorf("a forged cursor: %d %s", status, text)
	}
}

// checkPages reads a log and a directory in pages.
func checkPages(t *testing.T, w *world, commits []string) {
	t.Helper()
	var got []string
	for cursor := "start"; cursor != ""; {
		text := w.getAPI(t, "log/main?limit=1&cursor="+strings.TrimPrefix(cursor, "start"))
		_, rest, _ := strings.Cut(text, `"oid":"`)
		if rest != "" { // the last page is empty
			got = append(got, rest[:40])
		}
		cursor = nextOf(text)
	}
	if want := []string{commits[2], commits[1], commits[0]}; strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("log in pages: %v, want %v", got, want)
	}
	first := w.getAPI(t, "tree/main/?limit=1")
	second := w.getAPI(t, "tree/main/?limit=1&cursor="+nextOf(first))
	if !strings.Contains(first, "a.txt") || !strings.Contains(second, `"dir"`) || strings.Contains(second, `"next"`) {
		t.Errorf("pages of a directory:\n%s%s", first, second)
	}
}

// nextOf returns the cursor in a document; "" if there is none.
func nextOf(text string) string {
	_, rest, _ := strings.Cut(text, `"next":"`)
	next, _, _ := strings.Cut(rest, `"`)
	return next
}

func (w *world) askAPI(t *testing.T, path string) (status int, text string) {
	t.Helper()
	response, err := http.Get(w.url + "/-/api/v1/repos/team/app/" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Errorf("%s: %v", path, err)
	}
	return response.StatusCode, string(body)
}

func (w *world) getAPI(t *testing.T, path string) string {
	t.Helper()
	status, text := w.askAPI(t, path)
	if status != http.StatusOK {
		t.Fatalf("%s: %d %s", path, status, text)
	}
	return text
}
