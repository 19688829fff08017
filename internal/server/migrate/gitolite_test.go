package migrate

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

const gitoliteConf = `
@devs      = alice bob
@leads     = carol
@all-staff = @devs @leads dave
@apps      = app tool

repo gitolite-admin
    RW+ = admin

repo @apps
    desc = "All apps"
    RW+                       = @leads
    -   refs/tags/v           = @devs
    RW  master$               = @devs
    RW+ dev/                  = @devs
    RW+ personal/USER/        = @all-staff
    -   master                = dave
    RW                        = dave
    R                         = @all-staff daemon

repo app
    owner = "Carol C."
    RWC release               = bob

repo secret
    RW+CD = carol
    RW    = alice
    R     = @devs

repo denied
    option deny-rules = 1
    -  = bob
    RW = @devs

repo libs/..*
    RW+ = @leads
    R   = @all

repo libs/own
    RW  feature = dave
    RW+CD = bob

repo @all
    R = auditor
`

// gitolite runs gitolite in a home directory of its own.
type realGitolite struct {
	t    *testing.T
	home string
}

func (g *realGitolite) run(args ...string) (string, bool) {
	g.t.Helper()
	cmd := exec.Command("gitolite", args...)
	cmd.Env = append(os.Environ(), "HOME="+g.home, "GIT_CONFIG_NOSYSTEM=1", "USER=git")
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

func newGitolite(t *testing.T, conf string) *realGitolite {
	t.Helper()
	if _, err := exec.LookPath("gitolite"); err != nil {
		t.Skip("SKIPPED: there is no gitolite here (Debian's package gitolite3)")
	}
	g := &realGitolite{t, t.TempDir()}
	if out, ok := g.run("setup", "-a", "admin"); !ok {
		t.Fatalf("gitolite setup: %s", out)
	}
	rc := filepath.Join(g.home, ".gitolite.rc")
	text, err := os.ReadFile(rc)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), "GIT_CONFIG_KEYS                 =>  ''", "GIT_CONFIG_KEYS => '.*'", 1)
	if err := os.WriteFile(rc, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(g.home, ".gitolite/conf/gitolite.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, ok := g.run("compile"); !ok {
		t.Fatalf("gitolite compile: %s", out)
	}
	if out, ok := g.run("trigger", "POST_COMPILE"); !ok {
		t.Fatalf("gitolite trigger: %s", out)
	}
	return g
}

// decider has the rules of a Result.
func deciderOf(t *testing.T, r *Result) *auth.Auth {
	t.Helper()
	rules, err := auth.ParseRules(r.Groups, r.Rules, func(i int) string { return fmt.Sprint("rule ", i+1) })
	if err != nil {
		t.Fatal(err)
	}
	log, metrics := slog.New(slog.DiscardHandler), auth.NewMetrics(prometheus.NewRegistry())
	a := auth.New(auth.Options{Rules: rules, Metrics: metrics, Sources: auth.NewSources(metrics, log), Log: log})
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// decisions compares the decisions of gitolite and of its imported configuration, for each user, repository, ref and
// change.
func decisions(t *testing.T, conf string, repos, users []string) *Result {
	t.Helper()
	g := newGitolite(t, conf)
	r, err := Gitolite(filepath.Join(g.home, ".gitolite/conf/gitolite.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Notes) > 0 {
		t.Errorf("notes %v, want none", r.Notes)
	}
	a := deciderOf(t, r)
	var refs, questions []string
	for _, ref := range []string{"master", "master2", "dev/x", "dev/y", "developer", "personal/alice/x", "personal/bob/x",
		"release/1", "feature", "other"} {
		refs = append(refs, "refs/heads/"+ref)
	}
	refs = append(refs, "refs/tags/v1", "refs/tags/other")
	var ours []bool
	ask := func(repo, user, op, ref string, allowed bool) {
		questions, ours = append(questions, strings.Join([]string{repo, user, op, ref}, " ")), append(ours, allowed)
	}
	kinds := map[string]node.RefChange{"W": node.RefWrite, "+": node.RefForce, "C": node.RefCreate, "D": node.RefDelete}
	for _, repo := range repos {
		path, err := git.ParseRepoPath(repo)
		if err != nil {
			t.Fatal(err)
		}
		_, rules, _ := strings.Cut(conf, "\nrepo "+repo+"\n")
		rules, _, _ = strings.Cut(rules, "\nrepo ")
		forAll := a.May(t.Context(), auth.Identity{}, path, auth.Read) == nil // then users need no permission of their own
		for _, user := range users {
			id := auth.Identity{Name: user, By: auth.ByKey}
			if !forAll {
				ask(repo, user, "R", "any", a.May(t.Context(), id, path, auth.Read) == nil)
			}
			mayWrite := a.May(t.Context(), id, path, auth.Write) == nil
			ask(repo, user, "W", "any", true)
			list, err := a.RefRules(t.Context(), id, path)
			if err != nil {
				t.Fatal(err)
			}
			for _, ref := range refs {
				for op, kind := range kinds {
					asked := op // as the update hook of gitolite asks
					if op == "C" && !regexp.MustCompile(`(?m)^ *RW\+?D?C`).MatchString(rules) {
						asked = "W"
					} else if op == "D" && !regexp.MustCompile(`(?m)^ *RW\+?C?D`).MatchString(rules) {
						asked = "+"
					}
					ask(repo, user, asked, ref, mayWrite && list.Refusal(git.RefName(ref), kind) == "")
				}
			}
		}
	}
	pushes := false // gitolite first asks whether the user may push at all
	for i, theirs := range g.access(questions) {
		is := theirs == "true"
		if strings.HasSuffix(questions[i], " W any") {
			pushes = is
		} else if is = is && (pushes || strings.HasSuffix(questions[i], " any")); is != ours[i] {
			t.Errorf("%s: gitolite says %v, the rules say %v", questions[i], is, ours[i])
		}
	}
	if t.Failed() {
		t.Logf("the rules are\n%s", r.Access())
	}
	return r
}

func TestGitoliteAccess(t *testing.T) {
	t.Parallel()
	r := decisions(t, gitoliteConf, []string{"gitolite-admin", "app", "tool", "secret", "denied", "libs/own"},
		[]string{"admin", "alice", "bob", "carol", "dave", "auditor", "stranger"})
	i := slices.IndexFunc(r.Repositories, func(x *Repository) bool { return x.Path == "app" })
	if app := r.Repositories[i]; app.Owner != "Carol C." || app.Description != "All apps" {
		t.Errorf("app is %v", app)
	}
	a := deciderOf(t, r)
	for repo, want := range map[string]bool{"app": true, "tool": true, "secret": false, "libs/own": false} {
		path, err := git.ParseRepoPath(repo)
		if got := a.May(t.Context(), auth.Identity{}, path, auth.Read) == nil; got != want || err != nil {
			t.Errorf("anonymous callers may read %s: %v, want %v as git-daemon", repo, got, want)
		}
	}
}

func TestRandomGitoliteAccess(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	conf := "@one = alice bob\n@two = bob carol\n@both = @one @two dave\nrepo gitolite-admin\n    RW+ = admin\n"
	var repos []string
	for i := range 20 {
		repos = append(repos, fmt.Sprint("r", i))
		conf += "\nrepo " + repos[i] + "\n"
		for range 1 + random.IntN(6) {
			perm := pick("RW", "RW+", "RWC", "RW+CD", "-", "R", "RWD", "RW+C")
			ref := pick("", "", "master$", "master", "dev/", "dev/x", "refs/tags/", "refs/tags/v1$", "personal/USER/", "refs/")
			if perm == "R" {
				ref = ""
			}
			conf += fmt.Sprintf("    %s %s = %s %s\n", perm, ref, pick("alice", "bob", "@one", "@two", "@both", "@all"),
				pick("carol", "dave", "@two"))
		}
	}
	for i := range 10 { // several blocks for a repository
		path := fmt.Sprint("w/r", i)
		repos = append(repos, path)
		other := fmt.Sprint("w/r", random.IntN(10))
		conf += "\nrepo " + pick(path, path+" "+pick("w/..*", "@all"), "w/..* "+path, "@all", other) + " " + path + "\n"
		if random.IntN(3) == 0 {
			conf += "    option deny-rules = 1\n"
		}
		for range 1 + random.IntN(3) {
			conf += fmt.Sprintf("    %s %s = %s\n", pick("RW", "RW+", "-"), pick("", "master$", "dev/"),
				pick("alice", "bob", "@one", "@both", "@all"))
		}
	}
	decisions(t, conf, repos, []string{"alice", "bob", "carol", "dave", "stranger"})
	if t.Failed() {
		t.Logf("seed %d:\n%s", seed, conf)
	}
}

// access asks gitolite, in one process.
func (g *realGitolite) access(questions []string) (answers []string) {
	g.t.Helper()
	script := `use lib "/usr/share/gitolite3/lib"; use Gitolite::Rc; use Gitolite::Common; use Gitolite::Conf::Load;
		$ENV{GL_BINDIR} = "/usr/share/gitolite3"; chdir $rc{GL_REPO_BASE};
		while (<STDIN>) { chomp; print access(split / /) =~ /DENIED/ ? "false\n" : "true\n" }`
	cmd := exec.Command("perl", "-e", script)
	cmd.Env = append(os.Environ(), "HOME="+g.home, "GL_BINDIR=/usr/share/gitolite3", "GL_LIBDIR=/usr/share/gitolite3/lib")
	cmd.Stdin = strings.NewReader(strings.Join(questions, "\n") + "\n")
	out, err := cmd.Output()
	if err != nil {
		g.t.Fatalf("gitolite's access: %v", err)
	}
	return strings.Fields(string(out))
}

// Any file gives rules that Packhorse accepts, or an error.
func FuzzGitolite(f *testing.F) {
	f.Add(gitoliteConf)
	f.Add("@a = @a\nrepo @a x/.* @all (\n RW [ = @a\n - x$ = @all\n option deny-rules = 1\ninclude \"*\"\n desc = \"\n")
	f.Add("repo a/..* b/..*\n RW+CD personal/USER/ refs/ = u daemon\nrepo a/b\n - = @all\n R = \"x\"\n")
	f.Fuzz(func(t *testing.T, conf string) {
		path := write(t, filepath.Join(t.TempDir(), "conf/gitolite.conf"), conf)
		r, err := Gitolite(path)
		if err != nil {
			return
		}
		text := r.Access()
		cfg := config.DefaultConfig()
		if err := config.LoadFile(write(t, path+".toml", text), &cfg, config.Origins{}); err != nil {
			t.Errorf("%v:\n%s", err, text)
		}
		_ = r.Commands()
	})
}
