package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// forked is the result of a request to fork.
type forked struct {
	target string
	begun  time.Time
	status int
}

// TestForkMadePrivate has a user fork a repository again and again while new rules make it private. No fork that begins
// afterwards is made, earlier ones are complete or missing, and show nothing that the repository gets later.
func TestForkMadePrivate(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"disk", "store"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newStepWorld(t, 1, name == "store").forkMadePrivate()
		})
	}
}

func (w *stepWorld) forkMadePrivate() {
	t := w.t
	ann := createToken(t, "ann", "--state", filepath.Join(w.dir, "state"), "--scope", "admin")
	for name, add := range map[string]string{"private.toml": "", "public.toml": rule("ann", "app", "read")} {
		rules := rule("root", "**", "admin") + rule("alice", "**", "write") + rule("ann", "users/ann/**", "admin") + add
		if err := os.WriteFile(filepath.Join(w.dir, name), []byte(rules), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set := func(name string) {
		if out, ok := w.packhorse(noFault, "rules", "set", name, "--force"); !ok {
			t.Error(out)
		}
	}
	set("public.toml")
	results, stop := make(chan forked), make(chan struct{})
	go func() {
		defer close(results)
		for n := 0; ; n++ {
			r := forked{target: fmt.Sprint("users/ann/", n), begun: time.Now()}
			r.status = w.postFork(ann, r.target)
			select {
			case results <- r:
			case <-stop:
				return
			}
		}
	}()
	var all []forked
	made := func(status, n int) {
		for n > 0 && !t.Failed() {
			r := <-results
			all = append(all, r)
			if r.status == status {
				n--
			} else if r.status != http.StatusOK {
				t.Errorf("fork: status %d", r.status)
			}
		}
	}
	made(http.StatusOK, 2)
	changed := make(chan time.Time)
	go func() {
		set("private.toml")
		changed <- time.Now()
	}()
	made(http.StatusNotFound, 3)
	close(stop)
	since := <-changed
	for r := range results {
		all = append(all, r)
	}
	secret := w.client.Commit("later")
	if out, ok := w.push(noFault, "app", "later", secret); !ok {
		t.Fatal(out)
	}
	list, _ := w.packhorse(noFault, "repo", "list")
	list = "\n" + strings.ReplaceAll(list, ".git\n", "\n")
	for _, r := range all {
		url, exists := w.server.http+"/"+r.target, strings.Contains(list, "\n"+r.target+"\n")
		if exists != (r.status == http.StatusOK) || exists && r.begun.After(since) {
			t.Errorf("%s exists: %t, status %d, begun after the change: %t", r.target, exists, r.status, r.begun.After(since))
		}
		if !exists {
			continue
		}
		clone := gittest.Init(t, "--bare")
		if out, err := clientGit(t, basicHeader("ann", ann), clone.Dir, "fetch", "-q", url, "refs/*:refs/*"); err != nil {
			t.Errorf("%s: %v\n%s", r.target, err, out)
		}
		clone.Git("fsck", "--full", "--strict")
		w.compare(r.target, clone, w.members["app"])
		if out, err := clientGit(t, basicHeader("ann", ann), clone.Dir, "fetch", "-q", url, secret.String()); err == nil {
			t.Errorf("%s has a commit that the private repository got later: %s", r.target, out)
		}
	}
	if out, err := clientGit(t, basicHeader("ann", ann), "", "ls-remote", w.server.http+"/app"); err == nil {
		t.Errorf("the private repository can be read: %s", out)
	}
}

// rule returns a rule in a file of rules.
func rule(who, repositories, may string) string {
	return fmt.Sprintf("[[auth.rule]]\nwho = [%q]\nrepositories = [%q]\nmay = %q\n", who, repositories, may)
}

// postFork forks app over the API of the gateway, and returns the status.
func (w *stepWorld) postFork(token, target string) int {
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.server.http+"/-/api/v1/repos/app/forks",
		strings.NewReader(fmt.Sprintf(`{"target":%q}`, target)))
	if err != nil {
		w.t.Error(err)
		return 0
	}
	request.SetBasicAuth("ann", token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		w.t.Error(err)
		return 0
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || response.StatusCode >= http.StatusInternalServerError {
		w.t.Errorf("fork: %s, %s, %v", response.Status, text, err)
	}
	return response.StatusCode
}
