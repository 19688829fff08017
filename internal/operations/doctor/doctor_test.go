package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// otherUser is the ID of a user with the permissions of others on the files of the test.
const otherUser = 54321

// repository makes one at root/app.git with a branch main.
func repository(t *testing.T) (root string, r *gittest.Repo) {
	t.Helper()
	root = t.TempDir()
	r = gittest.InitAt(t, filepath.Join(root, "app.git"))
	r.Git("update-ref", "refs/heads/main", r.Commit("x").String())
	return root, r
}

func examined(t *testing.T, o RepositoryOptions) []Finding {
	t.Helper()
	var r Report
	o.Open.Root = o.Root
	n, err := Repositories(t.Context(), func(yield func(string, error) bool) { yield("app.git", nil) }, o, &r)
	if err != nil || n != 1 {
		t.Fatalf("examined %d: %v", n, err)
	}
	r.Sort()
	return r.Findings
}

// withPack packs a repository and changes its pack.
func withPack(r *gittest.Repo, change func(pack string, size int64) error) error {
	r.Git("repack", "-adbq")
	r.Git("commit-graph", "write", "--reachable")
	packs, err := filepath.Glob(r.Dir + "/objects/pack/pack-*.pack")
	if err != nil || len(packs) != 1 {
		return fmt.Errorf("%q: %w", packs, err)
	}
	info, err := os.Stat(packs[0])
	if err == nil {
		err = os.Chmod(packs[0], 0o644)
	}
	if err != nil {
		return err
	}
	return change(packs[0], info.Size())
}

// removeObject removes a loose object.
func removeObject(r *gittest.Repo, revision string) error {
	id := r.Git("rev-parse", revision)
	return os.Remove(r.Dir + "/objects/" + id[:2] + "/" + id[2:])
}

func deepRunner(t *testing.T) *process.Runner {
	t.Helper()
	runner, err := process.New(process.Options{Git: "git", Classes: map[process.Class]process.Limits{
		ClassDeep: {Slots: 1, Queue: 10, Wait: time.Minute, Time: time.Minute}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := runner.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return runner
}

// TestPlantedFaults plants one fault after another into a healthy repository: it is found, and nothing else.
func TestPlantedFaults(t *testing.T) {
	t.Parallel()
	write := func(path, text string, mode os.FileMode) error {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			return err
		}
		return os.Chmod(path, mode)
	}
	appendTo := func(path, text string) error {
		before, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, append(before, text...), 0o644)
	}
	for _, test := range []struct {
		name  string
		kind  string // of the finding; "" for none
		text  string // a part of its text, or advice
		plant func(r *gittest.Repo) error
		user  int // of the server; 0 is root, which has all permissions
		hooks receivepack.RepositoryHooks
		deep  bool
	}{
		{name: "healthy"},
		{name: "include", kind: "config-include", text: "includes another file", plant: func(r *gittest.Repo) error {
			return appendTo(r.Dir+"/config", "[include]\n\tpath = more\n")
		}},
		{name: "conditional include", kind: "config-include", text: "includeIf", plant: func(r *gittest.Repo) error {
			return appendTo(r.Dir+"/config", "[includeIf \"gitdir:/x\"]\n\tpath = more\n")
		}},
		{name: "turned off", kind: "turned-off", text: "http.uploadpack", plant: func(r *gittest.Repo) error {
			return appendTo(r.Dir+"/config", "[http]\n\tuploadpack = false\n")
		}},
		{name: "unborn HEAD", kind: "unborn-head", text: "packhorse repo set-head app main --root ",
			plant: func(r *gittest.Repo) error {
				return os.WriteFile(r.Dir+"/HEAD", []byte("ref: refs/heads/gone\n"), 0o644)
			}},
		{name: "unborn HEAD, a branch that a shell would run", kind: "unborn-head",
			text: "packhorse repo set-head app 'a;b$(c)' --root ", plant: func(r *gittest.Repo) error {
				r.Git("update-ref", "refs/heads/a;b$(c)", "refs/heads/main")
				r.Git("update-ref", "-d", "refs/heads/main")
				return os.WriteFile(r.Dir+"/HEAD", []byte("ref: refs/heads/gone\n"), 0o644)
			}},
		{name: "unborn HEAD, no branch", plant: func(r *gittest.Repo) error {
			r.Git("update-ref", "-d", "refs/heads/main")
			return nil
		}},
		{name: "missing lender", kind: "missing-lender", text: "/no/such/objects, which is missing",
			plant: func(r *gittest.Repo) error {
				return write(r.Dir+"/objects/info/alternates", "/no/such/objects\n", 0o644)
			}},
		{name: "lender outside", kind: "lender-outside", text: "not below the root", plant: func(r *gittest.Repo) error {
			return write(r.Dir+"/objects/info/alternates", t.TempDir()+"\n", 0o644)
		}},
		{name: "hook", kind: "hook-refuses-pushes", text: "hooks/pre-receive, hooks/update",
			plant: func(r *gittest.Repo) error {
				if err := write(r.Dir+"/hooks/pre-receive", "#!/bin/sh\n", 0o755); err != nil {
					return err
				}
				return write(r.Dir+"/hooks/update", "#!/bin/sh\n", 0o755)
			}},
		{name: "hook that is ignored", kind: "hook-not-run", text: "hooks/update", hooks: receivepack.IgnoreHooks,
			plant: func(r *gittest.Repo) error {
				return write(r.Dir+"/hooks/update", "#!/bin/sh\n", 0o755)
			}},
		{name: "hook that runs", hooks: receivepack.RunHooks,
			plant: func(r *gittest.Repo) error { return write(r.Dir+"/hooks/update", "#!/bin/sh\n", 0o755) }},
		{name: "sample of a hook",
			plant: func(r *gittest.Repo) error { return write(r.Dir+"/hooks/update.sample", "#!/bin/sh\n", 0o755) }},
		{name: "hook that is not executable", kind: "hook-not-executable", text: "chmod a+rx",
			plant: func(r *gittest.Repo) error {
				return write(r.Dir+"/hooks/update", "#!/bin/sh\n", 0o644)
			}},
		{name: "core.hooksPath", kind: "hook-refuses-pushes", text: "post-receive", plant: func(r *gittest.Repo) error {
			if err := appendTo(r.Dir+"/config", "[core]\n\thooksPath = mine\n"); err != nil {
				return err
			}
			return write(r.Dir+"/mine/post-receive", "#!/bin/sh\n", 0o755)
		}},
		{name: "another owner", kind: "not-writable", text: "pushes and maintenance fail", user: otherUser,
			plant: func(r *gittest.Repo) error {
				return filepath.WalkDir(r.Dir, func(path string, e os.DirEntry, err error) error {
					if err == nil && e.IsDir() {
						err = os.Chmod(path, 0o755)
					} else if err == nil {
						err = os.Chmod(path, 0o644)
					}
					return err
				})
			}},
		{name: "world-writable", kind: "world-writable", text: "objects",
			plant: func(r *gittest.Repo) error { return os.Chmod(r.Dir+"/objects", 0o777) }},
		{name: "future", kind: "future", text: "changed in the future", plant: func(r *gittest.Repo) error {
			later := time.Now().Add(time.Hour)
			return os.Chtimes(r.Dir+"/HEAD", later, later)
		}},
		{name: "no HEAD", kind: "refused", text: "git fsck", plant: func(r *gittest.Repo) error {
			return appendTo(r.Dir+"/config", "[core]\n\trepositoryformatversion = 7\n")
		}},
		{name: "cut pack", kind: "unusable-pack", text: "not the one its index", plant: func(r *gittest.Repo) error {
			return withPack(r, func(pack string, size int64) error { return os.Truncate(pack, size-25) })
		}},
		{name: "empty pack", kind: "unusable-pack", text: ".pack: not a pack: too short", plant: func(r *gittest.Repo) error {
			return withPack(r, func(pack string, _ int64) error { return os.Truncate(pack, 0) })
		}},
		{name: "lost pack", kind: "unusable-pack", text: "the pack is missing", plant: func(r *gittest.Repo) error {
			return withPack(r, func(pack string, _ int64) error { return os.Remove(pack) })
		}},
		{name: "cut index", kind: "unusable-pack", text: "the pack index has", plant: func(r *gittest.Repo) error {
			return withPack(r, func(pack string, _ int64) error {
				index := strings.TrimSuffix(pack, ".pack") + ".idx"
				text, err := os.ReadFile(index)
				if err == nil {
					err = os.Chmod(index, 0o644)
				}
				if err == nil {
					err = os.WriteFile(index, append(text[:8+256*4], text[len(text)-40:]...), 0o644)
				}
				return err
			})
		}},
		{name: "other pack", kind: "unusable-pack", text: "not the one its index", plant: func(r *gittest.Repo) error {
			return withPack(r, func(pack string, size int64) error {
				f, err := os.OpenFile(pack, os.O_WRONLY, 0)
				if err == nil {
					_, err = f.WriteAt([]byte{1, 2, 3}, size-3)
					err = errors.Join(err, f.Close())
				}
				return err
			})
		}},
		{name: "packs", plant: func(r *gittest.Repo) error {
			return withPack(r, func(string, int64) error { return nil })
		}},
		{name: "missing commit", kind: "missing-objects", text: "objects of 1 refs are missing, the first is ",
			plant: func(r *gittest.Repo) error { return removeObject(r, "main") }},
		{name: "missing tree", kind: "missing-objects", text: "1 objects are missing, the first is tree ", deep: true,
			plant: func(r *gittest.Repo) error { return removeObject(r, "main^{tree}") }},
		{name: "missing commit of a ref", kind: "missing-objects", text: "objects of 1 refs are missing", deep: true,
			plant: func(r *gittest.Repo) error { return removeObject(r, "main") }},
		{name: "commit without a type", kind: "fsck", text: "git fsck failed", deep: true,
			plant: func(r *gittest.Repo) error {
				id := r.Git("rev-parse", "main")
				path := r.Dir + "/objects/" + id[:2] + "/" + id[2:]
				return errors.Join(os.Chmod(path, 0o644), os.WriteFile(path, []byte("x"), 0o644))
			}},
		{name: "damage in a pack", kind: "damaged-pack", text: ".pack: damaged: its checksum is wrong", deep: true,
			plant: func(r *gittest.Repo) error {
				return withPack(r, func(pack string, _ int64) error { return flip(pack, 20) })
			}},
		{name: "damage in an index", kind: "damaged-pack", text: ".idx: damaged: its checksum is wrong", deep: true,
			plant: func(r *gittest.Repo) error {
				return withPack(r, func(pack string, _ int64) error {
					return flip(strings.TrimSuffix(pack, "pack")+"idx", 1040)
				})
			}},
		{name: "repository in another one", kind: "not-served", text: "below/other.git in it looks like", deep: true,
			plant: func(r *gittest.Repo) error {
				gittest.InitAt(t, filepath.Join(r.Dir, "below/other.git"), "--bare")
				gittest.InitAt(t, filepath.Join(r.Dir, "modules/sub"), "--bare")
				return nil
			}},
		{name: "nothing missing", deep: true},
		{name: "no bitmap", kind: "no-bitmap", text: "no bitmap and no commit-graph", plant: func(r *gittest.Repo) error {
			r.Git("repack", "-adq", "--no-write-bitmap-index")
			return nil
		}},
		{name: "bitmap", plant: func(r *gittest.Repo) error {
			r.Git("repack", "-adbq")
			r.Git("commit-graph", "write", "--reachable")
			return nil
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			root, r := repository(t)
			if test.plant != nil {
				if err := test.plant(r); err != nil {
					t.Fatal(err)
				}
			}
			o := RepositoryOptions{Root: root, User: User{UID: test.user, Name: "git"}, Objects: 2,
				Hooks: cmp.Or(test.hooks, receivepack.RefuseHooks)}
			if test.deep {
				o.Deep = deepRunner(t)
			}
			found := examined(t, o)
			switch {
			case test.kind == "" && len(found) == 0:
			case len(found) != 1 || found[0].Kind != test.kind || !strings.Contains(found[0].Text+found[0].Advice, test.text) ||
				found[0].Subject != "app.git" || found[0].Advice == "":
				t.Errorf("found %+v, want %s with %q", found, test.kind, test.text)
			}
		})
	}
}

// TestUnreadable checks that unreadable files of other users are one finding, with their number.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	root, r := repository(t)
	for _, path := range []string{"HEAD", "config", "objects"} {
		if err := os.Chmod(filepath.Join(r.Dir, path), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	kinds := map[string]string{}
	for _, f := range examined(t, RepositoryOptions{Root: root, User: User{UID: otherUser, Name: "git"}}) {
		kinds[f.Kind] = f.Text
	}
	if !strings.Contains(kinds["not-readable"], "HEAD and 2 more") {
		t.Errorf("%q", kinds)
	}
}

func TestManyRepositories(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	var r Report
	shown := make(chan int, 1000)
	n, err := Repositories(t.Context(), func(yield func(string, error) bool) {
		for i := range 500 {
			if !yield(fmt.Sprintf("%d.git", i), nil) {
				return
			}
		}
		yield("", os.ErrPermission)
	}, RepositoryOptions{Root: root, Open: repo.Options{Root: root}, Progress: func(n int) { shown <- n }}, &r)
	if n != 500 || err == nil || len(shown) != 500 {
		t.Errorf("%d examined (%v), %d shown", n, err, len(shown))
	}
}

func TestGit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ says, kind, severity string }{
		{"git version 2.39.5", "git-feature", "hint"},
		{"git version 2.47.3", "", ""},
		{"git version 2.50.1 (Apple Git-155)", "", ""},
		{"git version 3.0.GIT", "", ""},
		{"git version 2.35.8", "git-too-old", "problem"},
		{"hello", "git-missing", "problem"},
	} {
		program := filepath.Join(t.TempDir(), "git")
		syscall.ForkLock.RLock() // a child with the open file would make it busy
		err := os.WriteFile(program, []byte("#!/bin/sh\necho '"+test.says+"'\n"), 0o755)
		syscall.ForkLock.RUnlock()
		if err != nil {
			t.Fatal(err)
		}
		var r Report
		Git(t.Context(), program, &r)
		var kind, severity string
		if len(r.Findings) > 0 {
			kind, severity = r.Findings[0].Kind, string(r.Findings[0].Severity)
		}
		if len(r.Findings) > 1 || kind != test.kind || severity != test.severity {
			t.Errorf("%q: %+v, want %s", test.says, r.Findings, test.kind)
		}
	}
	var r Report
	Git(t.Context(), "/no/such/git", &r)
	if r.Problems() != 1 {
		t.Errorf("without git: %+v", r.Findings)
	}
}

func TestDiskFaults(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	for _, test := range []struct {
		free, size, inodesFree, inodes uint64
		want                           []string
	}{
		{100 * gib, 200 * gib, 1e6, 2e6, nil},
		{100 * gib, 200 * gib, 0, 0, nil}, // without inodes, as btrfs
		{gib / 2, 200 * gib, 1e6, 2e6, []string{"space"}},
		{3 * gib, 200 * gib, 1e6, 2e6, []string{"space"}},
		{100 * gib, 200 * gib, 100, 2e6, []string{"inodes"}},
	} {
		var got []string
		for _, f := range diskFaults("root", test.free, test.size, test.inodesFree, test.inodes) {
			got = append(got, f.Kind)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%+v: %q", test, got)
		}
	}
}

// TestMachine runs the checks of the machine. The clock has to be right.
func TestMachine(t *testing.T) {
	t.Parallel()
	var r Report
	Limits(0, &r)
	Limits(os.Getpid(), &r)
	Clock(t.TempDir(), &r)
	Disk(map[string]string{"root": t.TempDir(), "state": "/no/such/dir"}, &r)
	for _, group := range []string{GroupLimits, GroupDisk} {
		if r.Facts[group] == "" {
			t.Errorf("nothing about %s", group)
		}
	}
	for _, f := range r.Findings {
		if f.Kind == "skew" || f.Text == "" || f.Advice == "" {
			t.Errorf("%+v", f)
		}
	}
}

// TestAdvice checks that commands in advice can be pasted into a shell, for all names of branches.
func TestAdvice(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"team/app.git": "team/app.git", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "~x": "'~x'", "a;b": "'a;b'",
		"{a,b}": "'{a,b}'", "x*": "'x*'",
	} {
		if got := ShellWord(text); got != want {
			t.Errorf("%q is the word %s, want %s", text, got, want)
		}
	}
	if got := (&examination{path: "-x;y.git"}).argument(); got != "'/-x;y'" {
		t.Errorf("a repository like an option is named as %s", got)
	}
	if got := branchArgument("-x"); got != "refs/heads/-x" {
		t.Errorf("a branch like an option is named as %s", got)
	}
	for login, want := range map[string]string{"git": "chown -R git '/srv/a b'", "": "chown -R 54321 '/srv/a b'"} {
		u := User{UID: otherUser, Name: "user 54321", Login: login}
		if got := u.Chown("/srv/a b"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// flip changes a byte of a file.
func flip(path string, at int) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text[at] ^= 0xff
	return errors.Join(os.Chmod(path, 0o644), os.WriteFile(path, text, 0o644))
}
