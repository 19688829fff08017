package receivepack

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

// lfsObjects are the LFS objects of a repository.
type lfsObjects map[lfs.Object]bool

func (has lfsObjects) batch(_ context.Context, b lfs.Batch) ([]lfs.Status, error) {
	statuses := make([]lfs.Status, len(b.Objects))
	for i, o := range b.Objects {
		if has[o] {
			statuses[i].State = lfs.Present
		}
	}
	return statuses, nil
}

// pointer returns the object with a content and its pointer file.
func pointer(content string) (lfs.Object, string) {
	o := lfs.Object{OID: sha256.Sum256([]byte(content)), Size: int64(len(content))}
	return o, fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", o.OID, o.Size)
}

// commitFiles moves main to a commit with more files, and returns it.
func commitFiles(c *gittest.Repo, message string, files map[string]string) git.ObjectID {
	entries := c.Git("ls-tree", "main") + "\n"
	for name, content := range files {
		entries += fmt.Sprintf("100644 blob %v\t%s\n", c.Blob(content), name)
	}
	id := c.CommitTree(message, entries, c.ID("main"))
	c.Git("update-ref", "refs/heads/main", id.String())
	return id
}

func TestMissingLFS(t *testing.T) {
	w := newWorld(t, Options{})
	has := lfsObjects{}
	w.lfs = has.batch
	c := w.clone()
	w.mustPush(c, "main")
	before := w.refs()
	missing, text := pointer("a large file")
	commitFiles(c, "with a pointer", map[string]string{"big.bin": text})

	out, err := w.push(c, "main", "main:refs/heads/other")
	for _, want := range []string{"remote: this repository does not have the LFS objects of 1 pushed files:",
		"remote:   big.bin (" + missing.OID.String() + ", 12 bytes)", "remote: to upload them: git lfs push --all REMOTE",
		"main -> main (missing LFS objects)", "main -> other (missing LFS objects)"} {
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("push of a pointer to a missing object: %v, output %q, want an error and %q", err, out, want)
		}
	}
	if got := w.refs(); w.stored == nil && got != before {
		t.Errorf("refs after a refused push = %s, want %s", got, before)
	}
	if got := testutil.ToFloat64(w.server.metrics.failed.WithLabelValues(reasonLFS)); got != 1 {
		t.Errorf("failures with the reason %s = %v, want 1", reasonLFS, got)
	}
	has[missing] = true
	w.mustPush(c, "main")

	delete(has, missing) // what the history has is not checked again
	commitFiles(c, "next", map[string]string{"file2": "text"})
	c.Git("gc", "-q")
	w.mustPush(c, "main")
	w.mustPush(c, "main^{tree}:refs/tags/tree", ":refs/heads/none")
}

// TestManyMissingLFS checks a message with more files than it names, and that an object of another size is missing.
func TestManyMissingLFS(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	has := lfsObjects{}
	w.lfs = has.batch
	c := w.clone()
	files := map[string]string{}
	for i := range maxLFSNames + 5 {
		o, text := pointer(fmt.Sprint("content ", i))
		has[lfs.Object{OID: o.OID, Size: o.Size + 1}] = true
		files[fmt.Sprintf("f%d\x1b[31m.bin", i)] = text
	}
	commitFiles(c, "pointers", files)
	out, err := w.push(c, "--atomic", "main", "main:refs/heads/other")
	if err == nil || strings.Count(out, ".bin (") != maxLFSNames || !strings.Contains(out, "and 5 more") {
		t.Errorf("push of %d missing objects: %v, output %q, want an error, %d names and a count", len(files), err, out,
			maxLFSNames)
	}
	w.clean()
}

func TestMissingLFSIsAllowed(t *testing.T) {
	t.Parallel()
	_, text := pointer("elsewhere")
	for _, c := range []struct {
		name, config, message string
		policy                LFSPolicy
		isChecked             bool
	}{
		{name: "off", policy: AllowMissingLFS, isChecked: true},
		{name: "warn", policy: WarnMissingLFS, isChecked: true, message: "big.bin"},
		{name: "not checked"},
		{name: "another server", isChecked: true, config: "[lfs]\n\turl = https://lfs.example.com/\n"},
		{name: "remote's server", isChecked: true, config: "[remote \"origin\"]\n\tlfsURL = https://lfs.example.com/\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Options{MissingLFS: c.policy})
			if c.isChecked {
				w.lfs = lfsObjects{}.batch
			}
			client := w.clone()
			files := map[string]string{"big.bin": text}
			if c.config != "" {
				files[".lfsconfig"] = c.config
			}
			client.Git("tag", "-a", "-m", "v1", "v1", commitFiles(client, "a pointer", files).String())
			if out := w.mustPush(client, "main", "v1"); !strings.Contains(out, c.message) ||
				c.message == "" && strings.Contains(out, "LFS") {
				t.Errorf("output = %q, want %q", out, c.message)
			}
		})
	}
}

// A ref with another LFS server does not keep the other refs of a push from being checked.
func TestMissingLFSOfOneRef(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	w.lfs = lfsObjects{}.batch
	c := w.clone()
	_, elsewhere := pointer("elsewhere")
	commitFiles(c, "another server", map[string]string{"other.bin": elsewhere,
		".lfsconfig": "[lfs]\n\turl = https://lfs.example.com/\n"})
	c.Git("branch", "other")
	c.Git("reset", "-q", "--soft", "main^")
	_, text := pointer("missing")
	commitFiles(c, "this server", map[string]string{"big.bin": text})
	out, err := w.push(c, "other", "main")
	if err == nil || !strings.Contains(out, "big.bin") || strings.Contains(out, "other.bin") {
		t.Errorf("push with a missing object: %v, output %q, want an error that names only big.bin", err, out)
	}
	w.mustPush(c, "other")
}

// A push is not accepted if the objects cannot be checked.
func TestLFSCannotBeChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.clone()
	_, text := pointer("x")
	commitFiles(c, "a pointer", map[string]string{"big.bin": text})
	refused := lfs.Status{State: lfs.Refused, Err: fault.New(fault.Corrupt, "disk error")}
	for _, w.lfs = range []func(context.Context, lfs.Batch) ([]lfs.Status, error){
		func(context.Context, lfs.Batch) ([]lfs.Status, error) { return nil, errors.New("disk error") },
		func(context.Context, lfs.Batch) ([]lfs.Status, error) { return []lfs.Status{refused}, nil },
	} {
		out, err := w.push(c, "main")
		if err == nil || !strings.Contains(out, "cannot check whether its LFS objects are here") ||
			strings.Contains(out, "disk error") {
			t.Errorf("push: %v, output %q, want a refusal without the cause", err, out)
		}
	}
	if got := w.refs(); got != "" {
		t.Errorf("refs = %q, want none", got)
	}
	warned := newWorld(t, Options{MissingLFS: WarnMissingLFS})
	warned.lfs = w.lfs
	c = warned.clone()
	commitFiles(c, "a pointer", map[string]string{"big.bin": text})
	if out := warned.mustPush(c, "main"); !strings.Contains(out, "cannot check whether the LFS objects") {
		t.Errorf("output of a push with warnings = %q, want a message that it was not checked", out)
	}
}

// TestPointerSearch reads packs in parts of several sizes.
func TestPointerSearch(t *testing.T) {
	t.Parallel()
	_, text := pointer("one")
	_, other := pointer("another")
	large := gittest.Random(t, 5, gittest.Shape{Commits: 100})
	ordinary := []byte(large.GitIn("main\n", "pack-objects", "--revs", "--stdout", "-q"))
	large.Git("update-ref", "refs/heads/pointer", large.CommitTree("pointer",
		fmt.Sprintf("100644 blob %v\tbig.bin\n", large.Blob(text)), large.ID("main")).String())
	withPointer := []byte(large.GitIn("pointer\n", "pack-objects", "--revs", "--stdout", "-q"))
	extension := gittest.NewPackWriter(git.SHA1)
	version, rest, _ := strings.Cut(text, "\n")
	random := make([]byte, 350)
	rand.NewChaCha8([32]byte{}).Read(random)
	extension.Add(git.Blob, fmt.Appendf(nil, "%s\next-0-%s sha256:%.10s\n%s", version,
		base64.RawURLEncoding.EncodeToString(random), text, rest))
	delta := gittest.NewPackWriter(git.SHA1)
	delta.AddRefDelta(large.Blob(text), []byte(text), []byte(other))
	for _, c := range []struct {
		name string
		pack []byte
		want bool
	}{{"ordinary", ordinary, false}, {"with a pointer", withPointer, true}, {"delta", delta.Bytes(), true},
		{"extension", extension.Bytes(), true}} {
		for _, size := range []int{1, 7, 511, 32 << 10} {
			found := false
			s := &pointerSearch{body: bytes.NewReader(c.pack), found: func() error { found = true; return nil }}
			read, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{s}, make([]byte, size))
			if err != nil || read != int64(len(c.pack)) || found != c.want {
				t.Errorf("%s in parts of %d bytes: found = %t, %d bytes, %v, want %t and %d", c.name, size, found, read, err,
					c.want, len(c.pack))
			}
		}
	}
}

// Git runs the script only for a push that may have a pointer file.
func TestNoScriptWithoutPointers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	w.lfs = lfsObjects{}.batch
	scripts := w.server.options.Scripts
	script := filepath.Join(scripts, checkScript.name, string(repo.PreReceive))
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	c := w.clone()
	w.mustPush(c, "main")
	_, text := pointer("x")
	commitFiles(c, "a pointer", map[string]string{"big.bin": text})
	if out, err := w.push(c, "main"); err == nil {
		t.Errorf("the script was not run for a pointer file: %s", out)
	}
	if left, err := filepath.Glob(filepath.Join(scripts, "check-*")); err != nil || len(left) > 0 {
		t.Errorf("pushes left %q, %v", left, err)
	}
}
