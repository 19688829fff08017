package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestMoveOfGitLabScript follows move-gitlab-script.md with a Git host that has the refs and tokens of a GitLab.
func TestMoveOfGitLabScript(t *testing.T) {
	t.Parallel()
	if nginxProgram() == "" {
		t.Skip("*** There is no nginx: the replacement of GitLab's script is NOT tested. ***")
	}
	dir := t.TempDir()
	app := gittest.InitAt(t, filepath.Join(dir, "repositories/group/app.git"), "--bare")
	linear(t).Git("push", "--quiet", "--mirror", app.Dir)
	gitlab, err := newOrigin(filepath.Join(dir, "origin"), filepath.Join(dir, "repositories"), []string{"group"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gitlab.close)
	if err := gitlab.setUsers("group", "gitlab-ci-token:{PLAIN}job-token\n"); err != nil {
		t.Fatal(err)
	}
	g := followGuide(t, "move-gitlab-script.md", `from = "https://gitlab.example/"`,
		`from = "`+gitlab.url()+`/"`+"\nto = \"gitlab.example\"")
	g.env = append(g.env, "CI_JOB_TOKEN=job-token")
	// The archive that the script unpacks is from before the pipeline.
	g.sh("git clone -q " + app.Dir + " app && tar -czf archive.tar.gz -C app .")
	commit := func(ref string) string {
		id := app.Commit(ref).String()
		app.Git("update-ref", "refs/heads/main", id)
		app.Git("update-ref", ref, id)
		return id
	}
	tip := commit("refs/pipelines/100")

	g.follow(1)
	job := g.blocks[0]
	g.follow(1)
	if got := strings.TrimSpace(g.sh("git -C workspace rev-parse HEAD")); got != tip {
		t.Errorf("the job has %s, want %s", got, tip)
	}
	// The other jobs of the pipeline get the cached pack, also one in a workspace from the archive.
	before := gitlab.count("fetch")
	g.sh(strings.ReplaceAll(job, "workspace", "second"))
	g.sh("mkdir unpacked && tar -xzf archive.tar.gz -C unpacked && git -C unpacked remote rename origin archive")
	g.sh(strings.ReplaceAll(job, "workspace", "unpacked"))
	for _, workspace := range []string{"second", "unpacked"} {
		g.sh("git -C " + workspace + " fsck")
		if got := strings.TrimSpace(g.sh("git -C " + workspace + " rev-parse HEAD")); got != tip {
			t.Errorf("the job in %s has %s, want %s", workspace, got, tip)
		}
	}
	if after := gitlab.count("fetch"); after != before {
		t.Errorf("further jobs cost GitLab %d fetches", after-before)
	}
	if out := g.follow(1); !strings.Contains(out, `packhorse_cache_requests_total`) {
		t.Errorf("the metrics are %s", out)
	}
	// A job without a valid token gets nothing, unlike a reader of the archive.
	if out, err := g.try("CI_JOB_TOKEN=other; " + strings.ReplaceAll(job, "workspace", "third")); err == nil {
		t.Errorf("a job with a wrong token: %s", out)
	}
}
