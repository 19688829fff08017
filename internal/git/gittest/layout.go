package gittest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Layout is a way of storing the objects of a repository.
type Layout struct {
	Name string
	// Arrange stores the objects of r in this way, and returns r or the repository that now has them. It may add commits
	// to main.
	Arrange func(r *Repo) *Repo
}

// Layouts lists ways of storing the objects of a small repository, as Random makes it.
var Layouts = []Layout{
	{"one pack", func(r *Repo) *Repo { return r }},
	{"loose", (*Repo).unpacked},
	{"packs", func(r *Repo) *Repo { r.unpacked().Packs(4); return r }},
	{"packs and loose", func(r *Repo) *Repo {
		r.unpacked().Packs(3)
		r.Git("update-ref", "refs/heads/main", r.Commit("loose", r.ID("main")).String())
		return r
	}},
	{"bitmap", func(r *Repo) *Repo { r.Git("repack", "-q", "-adb"); return r }},
	{"bitmap and newer packs", func(r *Repo) *Repo {
		r.Git("repack", "-q", "-adb")
		r.Git("update-ref", "refs/heads/main", r.Commit("packed later", r.ID("main")).String())
		r.Git("repack", "-q", "-d")
		r.Git("update-ref", "refs/heads/main", r.Commit("loose", r.ID("main")).String())
		return r
	}},
	{"multi-pack-index", func(r *Repo) *Repo { r.unpacked().Packs(3); r.Git("multi-pack-index", "write"); return r }},
	{"multi-pack-index with bitmap", func(r *Repo) *Repo {
		r.unpacked().Packs(3)
		r.Git("repack", "-q", "-d")
		r.Git("multi-pack-index", "write", "--bitmap")
		return r
	}},
	{"graph", func(r *Repo) *Repo { r.Git("commit-graph", "write", "--reachable"); return r }},
	{"split graph", func(r *Repo) *Repo {
		r.GitIn(r.ID("main").String()+"\n", "commit-graph", "write", "--split", "--stdin-commits")
		r.Git("commit-graph", "write", "--split=no-merge", "--reachable")
		return r
	}},
	{"ref deltas", func(r *Repo) *Repo { r.Git("-c", "repack.useDeltaBaseOffset=false", "repack", "-qadf"); return r }},
	{"old index", func(r *Repo) *Repo { r.Git("-c", "pack.indexVersion=1", "repack", "-qadf"); return r }},
	{"reverse index", func(r *Repo) *Repo { r.Git("-c", "pack.writeReverseIndex=true", "repack", "-qadf"); return r }},
	{"kept pack", func(r *Repo) *Repo {
		r.unpacked().Packs(2)
		write(r, strings.TrimSuffix(r.packs()[0], "pack")+"keep", "")
		r.Git("repack", "-q", "-adb")
		return r
	}},
	{"cruft pack", func(r *Repo) *Repo {
		r.Commit("unreachable")
		r.Git("repack", "-q", "-d", "--cruft")
		return r
	}},
	{"alternate", func(r *Repo) *Repo { return r.Fork() }},
	{"alternate of an alternate", func(r *Repo) *Repo { return r.Fork().Fork() }},
	{"alternate with a bitmap", func(r *Repo) *Repo { r.Git("repack", "-q", "-adb"); return r.Fork() }},
}

// unpacked stores all objects of the repository loose.
func (r *Repo) unpacked() *Repo {
	r.t.Helper()
	for _, path := range r.packs() {
		pack, err := os.ReadFile(path)
		if err != nil {
			r.t.Fatal(err)
		}
		files, err := filepath.Glob(strings.TrimSuffix(path, "pack") + "*")
		if err != nil {
			r.t.Fatal(err)
		}
		for _, file := range files {
			if err := os.Remove(file); err != nil {
				r.t.Fatal(err)
			}
		}
		r.GitIn(string(pack), "unpack-objects", "-q")
	}
	return r
}

func (r *Repo) packs() []string {
	r.t.Helper()
	packs, err := filepath.Glob(filepath.Join(r.Dir, "objects/pack/*.pack"))
	if err != nil {
		r.t.Fatal(err)
	}
	return packs
}

// Packs moves loose objects into n packs of about the same size, without regard to history. Neighbouring packs have
// some objects in common, which they may store as different deltas.
func (r *Repo) Packs(n int) {
	r.t.Helper()
	ids := strings.Fields(r.Git("cat-file", "--batch-all-objects", "--unordered", "--batch-check=%(objectname)"))
	for i := range n {
		from, to := i*len(ids)/n, min((i+1)*len(ids)/n+len(ids)/10, len(ids))
		r.GitIn(strings.Join(ids[from:to], "\n")+"\n", "pack-objects", "-q", filepath.Join(r.Dir, "objects/pack/pack"))
	}
	r.Git("prune-packed", "-q")
}

// Fork makes a repository with the refs of r, which has the objects of r as an alternate, and one commit of its own.
func (r *Repo) Fork() *Repo {
	r.t.Helper()
	fork := Init(r.t, "--object-format="+r.Format().String())
	write(fork, filepath.Join(fork.Dir, "objects/info/alternates"), filepath.Join(r.Dir, "objects")+"\n")
	fork.Git("fetch", "-q", r.Dir, "+refs/*:refs/*")
	fork.Git("update-ref", "refs/heads/main", fork.Commit("only in "+fork.Dir, fork.ID("main")).String())
	return fork
}

// Newer runs a newer git in the repository. It skips the test if PACKHORSE_TEST_NEWER_GIT names none.
func (r *Repo) Newer(args ...string) string {
	r.t.Helper()
	program := os.Getenv("PACKHORSE_TEST_NEWER_GIT")
	if program == "" {
		r.t.Skip("PACKHORSE_TEST_NEWER_GIT names no newer git (see .ci/newer-git)")
	}
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = r.Dir, Env()
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func write(r *Repo, path, text string) {
	r.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}
