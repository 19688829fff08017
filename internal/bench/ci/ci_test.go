package ci

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

const ciKeys = "profile runners elapsed_s pipelines jobs jobs_waiting errors jobs_per_s job_ms " +
	"first_job_first_byte_ms mb mb_per_s ls_refs_ms cpu_s_per_job " +
	"cpu_s_per_gb anon_rss_mb client_cpu_s_per_job cache cache_after_first_pipeline cold_packs pack_objects_runs " +
	"disk_write_per_byte packs kinds"

// peer runs `packhorse-bench backend` until the test ends and returns its URL.
func peer(t *testing.T, root string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	cmd := benchtest.Program(loadgen.Env{Stdout: pw, Stderr: io.Discard})
	cmd.SetArgs([]string{"backend", root, "--http", "127.0.0.1:0"})
	go func() {
		err := cmd.ExecuteContext(ctx)
		pw.CloseWithError(err)
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("backend ended with %v", err)
		}
	})
	line := make([]byte, 1000)
	n, err := pr.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	url, _, _ := strings.Cut(string(line[:n]), " ")
	return strings.TrimSuffix(url, "/")
}

// patience is the duration of a run, and of the next one if a busy machine finished no job in the first.
var patience = []string{"2s", "10s", "40s"}

// TestCI runs each profile with git http-backend while the tip moves.
func TestCI(t *testing.T) {
	t.Parallel()
	for _, profile := range []string{"gitlab", "actions", "mixed"} {
		t.Run(profile, func(t *testing.T) {
			if testing.Short() && profile != "gitlab" {
				t.Skip("takes seconds")
			}
			t.Parallel()
			root, repo := benchtest.History(t, 60)
			url := peer(t, root) + "/demo.git"
			before := repo.ID("refs/heads/main")
			var got map[string]any
			for _, duration := range patience {
				got = benchtest.JSON(t, ciKeys, "ci", url, "--repo", repo.Dir, "--profile", profile, "--runners", "4", "--jobs",
					"6",
					"--every", "700ms", "--duration", duration, "--server-pid", fmt.Sprint(os.Getpid()))
				if benchtest.Number(t, got, "jobs") >= 4 {
					break
				}
			}
			if benchtest.Number(t, got, "errors") != 0 || benchtest.Number(t, got, "jobs") < 4 ||
				benchtest.Number(t, got, "pipelines") < 1 || benchtest.Number(t, got, "mb") <= 0 ||
				benchtest.Number(t, got, "cpu_s_per_job") <= 0 {
				t.Error(got)
			}
			if benchtest.Number(t, got, "packs") < 1 {
				t.Errorf("no pack was received: %v", got)
			}
			log := repo.Git("rev-list", "--count", before.String()+"..refs/heads/main")
			if pipelines := repo.Git("for-each-ref", "refs/pipelines"); log == "0" || pipelines == "" {
				t.Errorf("%s commits, pipelines %q", log, pipelines)
			}
			repo.Git("fsck", "--strict")
		})
	}
}

// TestCIWithoutPath measures a server with only its URL, without pushes.
func TestCIWithoutPath(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	root, repo := benchtest.History(t, 30)
	repo.Git("config", "uploadpack.allowFilter", "true")
	before := repo.Git("for-each-ref")
	url, out, errs, err := peer(t, root)+"/demo.git", "", "", error(nil)
	for _, duration := range patience {
		out, errs, err = benchtest.Run(t, t.Context(), "ci", url, "--profile", "mixed", "--runners", "10", "--jobs", "5",
			"--every", "500ms",
			"--duration", duration)
		if err != nil || strings.Contains(out, "gitlab-no-tags") {
			break
		}
	}
	if err != nil || !strings.Contains(out, "gitlab-no-tags") || !strings.Contains(out, "9 kinds of job checked by git") {
		t.Errorf("%v\n%s%s", err, out, errs)
	}
	if after := repo.Git("for-each-ref"); after != before {
		t.Errorf("refs were\n%s\nand are\n%s", before, after)
	}
}

func TestCIMisuse(t *testing.T) {
	t.Parallel()
	empty := gittest.Init(t)
	url := peer(t, filepath.Dir(empty.Dir)) + "/" + filepath.Base(empty.Dir)
	for want, args := range map[string][]string{
		"no server: give the URL":  nil,
		"shows no branch":          {url},
		"want gitlab, actions":     {url, "--profile", "jenkins"},
		"--runners 0":              {url, "--runners", "0"},
		"--every 1ms":              {url, "--every", "1ms"},
		"--fresh 1.5":              {url, "--fresh", "1.5"},
		"--fresh NaN":              {url, "--fresh", "NaN"},
		"need a URL: the server":   {"--repo", ".", "--server-pid", "1"},
		"--push \"ssh\"":           {"--repo", ".", "--push", "ssh"},
		"give --repo PATH alone":   {url, "--push", "http"},
		"--no-search are for":      {url, "--no-search"},
		"does not exist":           {"--repo", filepath.Join(t.TempDir(), "none")},
		"HTTP status 404":          {url + "/none"},
		"--repo does not contain":  {demoURL(t), "--repo", empty.Dir},
		"accepts at most 1 arg(s)": {url, url},
		"must be positive":         {url, "--duration", "0s"},
		"want http:// or https://": {"ssh://host/x"},
	} {
		_, errs, err := benchtest.Run(t, t.Context(), append([]string{"ci", "--packhorse", os.Args[0]}, args...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v\n%s", args, err, errs)
		}
	}
}

func demoURL(t *testing.T) string {
	root, _ := benchtest.History(t, 3)
	return peer(t, root) + "/demo.git"
}

func TestCIInterrupt(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	root, repo := benchtest.History(t, 10)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	url, done := peer(t, root)+"/demo.git", make(chan error, 1)
	go func() {
		_, _, err := benchtest.Run(t, ctx, "ci", url, "--repo", repo.Dir, "--duration", "1h", "--runners", "3")
		done <- err
	}()
	for strings.Count(repo.Git("for-each-ref", "refs/pipelines"), "\n") < 1 { // the second one was pushed
		time.Sleep(20 * time.Millisecond)
	}
	cancel()
	if err := <-done; err == nil || err.Error() != "interrupted" {
		t.Error(err)
	}
}

func TestFleetWithAnotherShareOfNewMachines(t *testing.T) {
	t.Parallel()
	o := ciOptions{profile: "mixed", fresh: 0.25}
	for i, p := range o.fleet() {
		want := ciProfiles["mixed"][i]
		if p.tool.Keeps() {
			want.fresh = 0.25
		}
		if p != want {
			t.Errorf("part %d is %+v, want %+v", i, p, want)
		}
	}
}

func TestCIShares(t *testing.T) {
	t.Parallel()
	for name, profile := range ciProfiles {
		s := &scene{history: NewHistory(), profile: profile}
		id := gittest.Init(t).Commit("x")
		if err := s.history.Add(id, 1); err != nil {
			t.Fatal(err)
		}
		s.tip, s.branch = id, "refs/heads/main"
		total := 0
		for _, p := range profile {
			total += p.weight
		}
		c, err := newCrew(s, 3*total, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range profile {
			n := 0
			for _, r := range c.idle {
				if r.machine.Tool == p.tool {
					n++
				}
			}
			if n != 3*p.weight {
				t.Errorf("%s: %d of %d machines run %v, want %d", name, n, len(c.idle), p.tool, 3*p.weight)
			}
		}
	}
}

func TestColdShare(t *testing.T) {
	t.Parallel()
	runs, cpu := loadgen.Commands+"{"+loadgen.PackGit+"}", loadgen.GitCPU+"{"+loadgen.PackGit+"}"
	c := &ciResult{jobs: make([]doneJob, 10), packs: 20,
		before: loadgen.Metrics{runs: 1, cpu: 1},
		after: loadgen.Metrics{runs: 4, `packhorse_packs_made_total{source="native"}`: 2, cpu: 2, loadgen.Select: 0.1,
			loadgen.Write: 0.3}}
	got := cold(c)
	if want := (coldShare{5, 0.25, 0.1, 0.04}); *got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	c.jobs = nil
	if got := cold(c); got != nil {
		t.Errorf("without jobs: got %+v, want nil", got)
	}
}
