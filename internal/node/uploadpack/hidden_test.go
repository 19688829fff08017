package uploadpack

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// hideConfigs are the lines that random configurations are made of.
var hideConfigs = []string{
	"refs/heads", "refs/heads/", "refs/heads/a", "refs/heads/a//", "refs/tags/v", "refs", "HEAD", "heads/main",
	"refs/heads/main", "refs/sym",
	"!refs/heads/main", "!refs/heads/a/b", "!refs", "!HEAD", "!refs/tags/v1", "^refs/heads/ab", "!^refs/heads/ab",
	"^!refs/heads", "!", "^", "/", "\"\"", "!refs/sym",
}

func hiddenConfig(rnd *rand.Rand) string {
	var b strings.Builder
	for range 1 + rnd.IntN(5) {
		fmt.Fprintf(&b, "[%s]\n\thideRefs = %s\n", pick(rnd, []string{"transfer", "uploadpack", "Transfer", "receive"}),
			pick(rnd, hideConfigs))
	}
	return b.String()
}

// Refs are listed and found as by git with any hidden refs.
func TestHiddenRefsAsGit(t *testing.T) {
	t.Parallel()
	const seed = 5
	rnd := rand.New(rand.NewPCG(seed, 0))
	g := gittest.Init(t)
	id := g.Commit("x")
	names := []string{"refs/heads/main", "refs/heads/a/b", "refs/heads/a/c", "refs/heads/ab", "refs/other"}
	for _, name := range names {
		g.Git("update-ref", name, id.String())
	}
	g.Git("tag", "-a", "-m", "x", "v1", "main")
	g.Git("pack-refs", "--all")
	g.Git("update-ref", "refs/tags/v/2", id.String())
	inStore := isInStore(t)
	if !inStore {
		g.Git("symbolic-ref", "refs/sym", "refs/heads/a/b")
	}
	path := filepath.Join(g.Dir, "config")
	plain, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	names = append(names, "HEAD", "refs/tags/v1", "refs/tags/v/2", "refs/sym")
	for i := range 60 {
		switch {
		case i == 30:
			g.Git("symbolic-ref", "HEAD", "refs/heads/unborn")
		case i == 40 && !inStore:
			g.Git("update-ref", "--no-deref", "HEAD", id.String())
		}
		config := hiddenConfig(rnd)
		if err := os.WriteFile(path, []byte(string(plain)+oracleConfig+config), 0o600); err != nil {
			t.Fatal(err)
		}
		s := &testServer{Repo: g, repo: openRepo(t, g.Dir), format: git.SHA1}
		server := New(keySource{}, Options{Wants: WantsAny})
		request := (&testRequest{command: "ls-refs", args: []string{"peel", "symrefs", "unborn"}}).bytes(git.SHA1)
		got, _, err := s.serve(server, request)
		want, failed, stderr := s.oracle(t, request)
		if failed || err != nil || got.String() != string(want) {
			t.Errorf("seed %d, %q:\n%q, %v\ngit: %s\n%q", seed, config, got, err, stderr, want)
		}
		name := pick(rnd, names)
		request = (&testRequest{command: "fetch", args: []string{"want-ref " + name, "done"}}).bytes(git.SHA1)
		_, _, err = s.serve(server, request)
		if _, failed, stderr := s.oracle(t, request); failed != (err != nil) ||
			err != nil && !fault.Is(err, fault.NotFound) {
			t.Errorf("seed %d, %q, want-ref %s: %v\ngit: %s", seed, config, name, err, stderr)
		}
	}
}

// Objects that only hidden refs reach are not sent in any other way.
func TestHiddenObjects(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	a := g.Commit("a")
	b := g.Commit("b", a)
	secret := g.Commit("secret", b)
	g.Git("update-ref", "refs/heads/main", b.String())
	g.Git("update-ref", "refs/secret/x", secret.String())
	g.Git("tag", "-a", "-m", "x", "hidden", "main")
	g.Git("tag", "-a", "-m", "x", "shown", "main")
	g.Git("config", "transfer.hideRefs", "refs/secret")
	g.Git("config", "uploadpack.hideRefs", "refs/tags/hidden")
	r := openRepo(t, g.Dir)
	for _, rule := range []Wants{WantsAny, WantsReachable, WantsTip} {
		for _, test := range []struct {
			args []string
			want fault.Kind
		}{
			{[]string{"want " + b.String()}, fault.Exhausted},
			{[]string{"want " + secret.String()}, fault.Denied},
			{[]string{"want " + g.ID("hidden").String()}, fault.Denied},
			{[]string{"want " + g.ID(secret.String()+":file").String()}, fault.Denied},
			{[]string{"want-ref refs/secret/x"}, fault.NotFound},
			{[]string{"want " + b.String(), "deepen-not refs/secret/x"}, fault.NotFound},
			{[]string{"want " + b.String(), "filter sparse:oid=refs/secret/x:file"}, fault.Invalid},
			{[]string{"want " + b.String(), "filter sparse:oid=" + secret.String() + ":file"}, fault.Invalid},
			{[]string{"want " + b.String(), "filter sparse:oid=" + g.ID(secret.String()+":file").String()},
				fault.Invalid},
			{[]string{"want " + b.String(), "filter sparse:oid=" + g.ID("main:file").String()}, fault.Exhausted},
			{[]string{"want " + b.String(), "filter sparse:oid=HEAD:file"}, fault.Exhausted},
			{[]string{"want " + b.String(), "filter sparse:oid=refs/heads/main:file"}, fault.Exhausted},
			{[]string{"want " + b.String(), "filter sparse:oid=" + b.String() + ":file"}, fault.Exhausted},
		} {
			q := testRequest{command: "fetch", args: append(test.args, "done")}
			_, _, err := (&testServer{repo: r}).serve(New(&asked{}, Options{Wants: rule}), q.bytes(r.Format))
			if fault.KindOf(err) != test.want {
				t.Errorf("wants = %s, %q: %v", rule, test.args, err)
			}
		}
	}
	source := &asked{}
	q := testRequest{command: "fetch", args: []string{"want " + b.String(), "include-tag", "done"}}
	(&testServer{repo: r}).serve(New(source, Options{}), q.bytes(r.Format))
	if source.spec == nil || len(source.spec.Tags) != 1 || source.spec.Tags[0].ID != g.ID("shown") {
		t.Errorf("tags that may come along: %+v", source.spec)
	}
}
