package storage_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

func (r *root) purge(path string, ids ...git.ObjectID) (storage.PurgeReceipt, error) {
	r.t.Helper()
	return r.Purge(r.t.Context(), r.path(path), places.PurgeOptions{IDs: ids})
}

// scan inflates every pack, loose object and temporary pack below a directory with stock git, and returns the files
// that have one of the objects.
func scan(t *testing.T, dir string, format string, ids ...git.ObjectID) (found []string) {
	t.Helper()
	empty := gittest.InitAt(t, filepath.Join(t.TempDir(), "scan.git"), "--bare", "--object-format="+format)
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		for _, id := range ids {
			if strings.HasSuffix(path, filepath.Join(id.String()[:2], id.String()[2:])) {
				found = append(found, path)
			}
		}
		content, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(content), "PACK") {
			return err
		}
		idx := filepath.Join(t.TempDir(), "x.idx")
		empty.Git("index-pack", "-o", idx, path)
		index, err := os.ReadFile(idx)
		if err != nil {
			return err
		}
		list := empty.GitIn(string(index), "show-index", "--object-format="+format)
		for _, id := range ids {
			if strings.Contains(list, id.String()) {
				found = append(found, path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestPurge removes a blob that is the base of deltas, from packs that are kept, cruft and shared, and loose.
func TestPurge(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			r := newManager(t)
			app := gittest.InitAt(t, filepath.Join(r.dir, "app.git"), "--bare", "--object-format="+format)
			app.Git("update-ref", "refs/heads/main", app.Commit("x").String())
			history(app, 1)
			text := randomText()
			secret := app.Blob(text + "secret")
			leak := app.CommitTree("leak", "100644 blob "+secret.String()+"\tfile\n")
			kept := app.Blob(text + "public, and a delta of the secret")
			app.Git("update-ref", "refs/heads/leak", leak.String())
			app.Git("update-ref", "refs/tags/kept", kept.String())
			app.Git("repack", "-a", "-d", "-q", "-f")
			packs, err := filepath.Glob(filepath.Join(app.Dir, "objects/pack/*.pack"))
			for _, path := range packs {
				err = os.WriteFile(strings.TrimSuffix(path, ".pack")+".keep", []byte("kept"), 0o600)
			}
			r.do(err)
			if _, err := r.purge("app", secret); !fault.Is(err, fault.Precondition) ||
				!strings.Contains(err.Error(), "refs/heads/leak") {
				t.Fatalf("purge of a reachable object: %v, want the name of the ref", err)
			}
			app.Git("update-ref", "-d", "refs/heads/leak")
			app.Git("config", "core.logAllRefUpdates", "always")
			app.Git("update-ref", "refs/heads/logged", leak.String())
			app.Git("update-ref", "refs/heads/logged", "main")
			young := app.CommitTree("on top of the leak", "100644 blob "+kept.String()+"\tfile\n", leak)
			if copies := scan(t, r.dir, format, secret); len(copies) == 0 {
				t.Fatal("the test has no copy of the secret")
			}
			receipt, err := r.purge("app", secret)
			r.do(err)
			if receipt.Reflogs != 2 || receipt.Objects != 4 || len(receipt.Files) < 4 || receipt.Hidden.IsZero() {
				t.Errorf("%+v, want 4 objects: blob, tree, and two commits; and 2 values in a reflog", receipt)
			}
			if copies := scan(t, r.dir, format, secret, leak, young); len(copies) > 0 {
				t.Errorf("copies are left: %q", copies)
			}
			app.Git("fsck", "--full", "--strict")
			app.Git("commit-graph", "verify")
			app.Git("cat-file", "-e", kept.String())
			if keep, err := filepath.Glob(filepath.Join(app.Dir, "objects/pack/*.keep")); len(keep) != 1 {
				t.Errorf("%q, %v, want one pack that is kept", keep, err)
			}
			if list := strings.Fields(app.Git("config", "--get-all", "packhorse.purged")); !slices.Equal(list,
				[]string{secret.String()}) {
				t.Errorf("the repository remembers %q", list)
			}
			if _, err := r.purge("app", secret); err != nil {
				t.Errorf("the second time: %v", err)
			}
		})
	}
}

// TestPurgeFork purges in a network of forks, whose members share files.
func TestPurgeFork(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	app := gittest.InitAt(t, filepath.Join(r.dir, "app.git"), "--bare")
	app.Git("update-ref", "refs/heads/main", app.Commit("x").String())
	history(app, 1)
	secret := app.Commit("secret")
	app.Git("update-ref", "refs/heads/leak", secret.String())
	app.Git("repack", "-a", "-d", "-q")
	fork := r.fork("app", "fork")
	other := r.fork("app", "other")
	app.Git("update-ref", "-d", "refs/heads/leak")
	fork.Git("update-ref", "-d", "refs/heads/leak")
	if _, err := r.purge("app", secret); !fault.Is(err, fault.Precondition) ||
		!strings.Contains(err.Error(), "other.git refs/heads/leak") {
		t.Fatalf("purge of what a fork reaches: %v, want the fork and its ref", err)
	}
	other.Git("update-ref", "-d", "refs/heads/leak")
	own := fork.Commit("of the fork alone", secret)
	lockGraph(t, fork)
	_, err := r.purge("app", secret)
	r.do(err)
	if copies := scan(t, r.dir, "sha1", secret, own); len(copies) > 0 {
		t.Errorf("copies are left: %q", copies)
	}
	for _, member := range []*gittest.Repo{app, fork, other} {
		member.Git("fsck", "--full", "--strict")
		member.Git("commit-graph", "verify")
		if got := strings.TrimSpace(member.Git("config", "packhorse.purged")); got != secret.String() {
			t.Errorf("%s remembers %q", member.Dir, got)
		}
	}
	r.fork("app", "later").Git("fsck", "--full")
}

// TestPurgeServed pushes the object again, and asks for it and for commits that need it, by the protocol and by calls.
func TestPurgeServed(t *testing.T) {
	t.Parallel()
	r := collectedRoot(t, receivepack.Options{})
	app := gittest.InitAt(t, filepath.Join(r.dir, "app.git"), "--bare")
	app.Git("update-ref", "refs/heads/main", app.Commit("x").String())
	front := httptest.NewServer(http.HandlerFunc(r.serveHTTP))
	defer front.Close()
	client := gittest.Init(t, "--bare")
	client.Git("fetch", "-q", front.URL+"/app", "main:main")
	secret := client.Blob("the secret")
	leak := client.CommitTree("leak", "100644 blob "+secret.String()+"\tfile\n", client.ID("main"))
	client.Git("push", "-q", front.URL+"/app", leak.String()+":refs/heads/leak")
	gittest.Init(t, "--bare").Git("fetch", "-q", front.URL+"/app", "refs/heads/leak") // it is cached
	client.Git("push", "-q", front.URL+"/app", ":refs/heads/leak")
	path := r.path("app")
	reads := func() error {
		return r.Blob(t.Context(), path, lookup.BlobRequest{ID: secret}, func(lookup.BlobHeader) error { return nil },
			func([]byte) error { return nil })
	}
	r.do(reads())
	_, err := r.purge("app", secret)
	r.do(err)
	if err := reads(); !fault.Is(err, fault.NotFound) {
		t.Errorf("a call reads the object: %v", err)
	}
	for _, id := range []git.ObjectID{secret, leak} {
		if out, err := gittest.Init(t, "--bare").Try("fetch", "-q", front.URL+"/app", id.String()); err == nil {
			t.Errorf("a client gets %s: %s", id, out)
		}
	}
	for _, ref := range []string{"refs/heads/leak", "refs/heads/new"} {
		out, err := client.Try("push", "-q", front.URL+"/app", leak.String()+":"+ref)
		if err == nil || !strings.Contains(out+err.Error(), "was purged") {
			t.Errorf("a push brings the object back: %v %s", err, out)
		}
	}
	if _, err := r.change("app", put("side", "file", "the secret")); !fault.Is(err, fault.Denied) {
		t.Errorf("a call brings the object back: %v", err)
	}
	if _, err := r.change("app", put("side", "file", "something else")); err != nil {
		t.Error(err)
	}
	client.Git("push", "-q", front.URL+"/app", client.Commit("good", client.ID("main")).String()+":refs/heads/good")
	if copies := scan(t, r.dir, "sha1", secret, leak); len(copies) > 0 {
		t.Errorf("copies are left: %q", copies)
	}
	app.Git("fsck", "--full", "--strict")
}
