package receivepack

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// A user's git push commands, one after the other, in both object formats.
func TestPush(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Options{}, "--object-format="+format)
			c := w.clone()
			first := c.ID("main")
			w.mustPush(c, "main", "main:refs/heads/other", "main:refs/heads/-x")
			if got := w.refs(); strings.Count(got, first.String()) != 3 || !strings.Contains(got, "refs/heads/-x") {
				t.Fatalf("after the first push: %s", got)
			}
			second := c.Commit("second", first)
			c.Git("update-ref", "refs/heads/main", second.String())
			c.Git("tag", "-a", "-m", "tag", "v1", "main")
			w.mustPush(c, "--follow-tags", "main")
			if w.ID("main") != second || w.ID("v1^{commit}") != second {
				t.Errorf("after the second push: %s", w.refs())
			}
			c.Git("update-ref", "refs/heads/main", c.Commit("third", first).String())
			if out, err := w.push(c, "main"); err == nil || !strings.Contains(out, "non-fast-forward") {
				t.Errorf("a push that loses a commit: %v %s", err, out)
			}
			if out, err := w.push(c, "--force-with-lease=main:"+first.String(), "main"); err == nil ||
				!strings.Contains(out, "stale info") {
				t.Errorf("with a lease that is stale: %v %s", err, out)
			}
			w.mustPush(c, "--force-with-lease=main:"+second.String(), "main")
			w.mustPush(c, "--delete", "other")
			if out, err := w.push(c, "--atomic", "main:refs/heads/new", "main:refs/heads/main/below"); err == nil {
				t.Errorf("half of an atomic push: %s", out)
			}
			if got := w.refs(); strings.Contains(got, "new") || strings.Contains(got, "other") || w.ID("main") != c.ID("main") {
				t.Errorf("at the end: %s", got)
			}
			want := []string{"refs/heads/-x", "refs/heads/main", "refs/heads/main", "refs/heads/main", "refs/heads/other",
				"refs/heads/other", "refs/tags/v1"}
			for _, ref := range want {
				if strings.Count(w.changed(), ref+" ") != strings.Count(strings.Join(want, " ")+" ", ref+" ") {
					t.Errorf("%s: told of %s", ref, w.changed())
				}
			}
			w.clean()
		})
	}
}

// The advertisement is what git's own is, but for names of programs.
func TestAdvertisement(t *testing.T) {
	t.Parallel()
	filled := func(t *testing.T, args ...string) *world {
		w := newWorld(t, Options{MaxOptions: -1}, args...)
		id := w.Commit("x").String()
		for _, ref := range []string{"refs/heads/main", "refs/heads/a/b", "refs/changes/1", "refs/tags/t"} {
			w.Git("update-ref", ref, id)
		}
		w.Git("tag", "-a", "-m", "m", "annotated", id)
		w.Git("symbolic-ref", "refs/heads/link", "refs/heads/main")
		w.Git("pack-refs", "--all")
		w.Git("update-ref", "refs/heads/loose", id)
		return w
	}
	for name, test := range map[string]struct {
		make   func(t *testing.T) *world
		config [][]string
	}{
		"empty":  {make: func(t *testing.T) *world { return newWorld(t, Options{MaxOptions: -1}) }},
		"filled": {make: func(t *testing.T) *world { return filled(t) }},
		"sha256": {make: func(t *testing.T) *world { return filled(t, "--object-format=sha256") }},
		"hidden": {make: func(t *testing.T) *world { return filled(t) },
			config: [][]string{{"receive.hideRefs", "refs/changes"}, {"transfer.hideRefs", "refs/tags"}}},
		"fetches": {make: func(t *testing.T) *world { return filled(t) },
			config: [][]string{{"uploadpack.hideRefs", "refs/heads"}}},
		"all hidden": {make: func(t *testing.T) *world { return filled(t) },
			config: [][]string{{"receive.hideRefs", "refs"}}},
		"not atomic": {make: func(t *testing.T) *world { return filled(t) },
			config: [][]string{{"receive.advertiseAtomic", "false"}}},
		"no offsets": {make: func(t *testing.T) *world { return filled(t) },
			config: [][]string{{"repack.useDeltaBaseOffset", "no"}}},
		"cut history": {make: func(t *testing.T) *world { return shallowWorld(t) }},
	} {
		for _, version := range []protocol.Version{protocol.V0, protocol.V1, protocol.V2} {
			t.Run(name+" "+version.String(), func(t *testing.T) {
				t.Parallel()
				w := test.make(t)
				for _, c := range test.config {
					w.Git("config", "--add", c[0], c[1])
				}
				cmd := exec.Command("git", "receive-pack", "--http-backend-info-refs", w.Dir)
				cmd.Env = append(gittest.Env(), "GIT_PROTOCOL=version="+version.String()[1:])
				want, err := cmd.Output()
				if err != nil {
					t.Fatal(err)
				}
				reply := &recorder{}
				session := node.Session{Version: version, Stateless: true}
				if _, err := w.server.Advertise(context.Background(), w.open(), session, "", reply); err != nil {
					t.Fatal(err)
				}
				got := reply.String()
				_, agent, _ := strings.Cut(string(want), "agent=")
				agent, _, _ = strings.Cut(agent, "\n")
				if normal(got, "agent=test") != normal(string(want), "agent="+agent) {
					t.Errorf("got\n%q\ngit says\n%q", got, want)
				}
			})
		}
	}
}

// normal leaves away what has to differ: the agent, and with it the length of its line.
func normal(s, agent string) string {
	before, after, ok := strings.Cut(s, agent)
	if !ok {
		return s
	}
	start := strings.LastIndex(before, "\n")
	if start < 0 {
		return before[4:] + after
	}
	return before[:start+1] + before[start+5:] + after
}

func shallowWorld(t *testing.T) *world {
	if isInStore(t) {
		t.Skip("a store has no repositories with cut history")
	}
	full := gittest.Init(t)
	id := full.Commit("1")
	for _, text := range []string{"2", "3", "4"} {
		id = full.Commit(text, id)
	}
	full.Git("update-ref", "refs/heads/main", id.String())
	dir := t.TempDir() + "/shallow.git"
	full.Git("clone", "-q", "--mirror", "--depth=2", "file://"+full.Dir, dir)
	return worldAt(t, Options{MaxOptions: -1}, gittest.At(t, dir))
}
