package pushrecovery

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// sample is a record with every field. Ref names can have any bytes, and must survive as they are.
func sample() Record {
	return Record{
		GitDir: "/srv/git/a b.git", CommonDir: "/srv/git/c\n.git", Start: time.Unix(0,
			1_764_085_712_000_000_001), LocksHead: true,
		Refs: map[git.RefName]git.ObjectID{"refs/heads/\xff": id("1"), "refs/heads/\xfe": {},
			"refs/heads/\"é\"": id("2")},
		Old:       map[git.RefName]git.ObjectID{"refs/heads/\xff": {}, "refs/heads/\xfe": id("3")},
		Committer: []string{"GIT_COMMITTER_NAME=a\"b"}, DisabledConfig: []string{"hook.x\xff.enabled"},
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	r := newRecovery(t, t.TempDir())
	want := sample()
	e, err := r.create("one", want)
	if err != nil {
		t.Fatal(err)
	}
	if !e.isActive() {
		t.Error("the entry is not active although its file is locked")
	}
	for range 2 {
		entries, err := r.read()
		if err != nil || len(entries) != 1 || entries[0].id() != "one" || !reflect.DeepEqual(entries[0].Record, want) {
			t.Fatalf("got %+v, %v\nwant %+v", entries, err, want)
		}
		if err := e.MarkAgreed(); err != nil {
			t.Fatal(err)
		}
		want.Agreed = true
	}
	e.release()
	// a child that another test starts shares the lock until its program runs
	gittest.WaitFor(t, "the entry is not active after release", func() bool { return !e.isActive() })
	e.remove()
	if entries, err := r.read(); err != nil || len(entries) != 0 {
		t.Errorf("after remove: got %+v, %v", entries, err)
	}
}

// A file that was cut off belongs to a push that never started, wherever it was cut.
func TestIncompleteRecord(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	r := sample()
	if err := r.write(&b); err != nil {
		t.Fatal(err)
	}
	whole := strings.TrimSuffix(b.String(), "\n")
	for at := range whole {
		if _, err := readRecord(strings.NewReader(whole[:at])); err != errIncomplete {
			t.Errorf("%q: got %v, want %v", whole[:at], err, errIncomplete)
		}
	}
}

// Files that cannot be read are rejected, and the others are read all the same.
func TestUnreadableFiles(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	if err := os.MkdirAll(dir+"/directory", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	const good = `{"version":1,"git_dir":"L3g=","common_dir":"L3g=","start":1}` + "\n"
	change := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	for name, text := range map[string]string{
		"empty": "", "half": good[:20], "good": good, "other": "{}\n", "binary": "\x00\xff\n\n",
		"no-repository": change("L3g=", ""), "no-start": change(":1}", ":0}"), "relative": change("L3g=", "eA=="),
		"escape": change("}", `,"refs":1}`) + "- \"refs/../../x\"\n",
		"id":     change("}", `,"refs":1}`) + "1 \"refs/heads/x\"\n",
		"long":   strings.Repeat("x", maxLine+1), "negative": change("}", `,"refs":-1}`),
		"old-alone": change("}", `,"old":1}`) + "- \"refs/heads/x\"\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pushes, err := newRecovery(t, dir).read()
	var rejected []string
	files, readErr := os.ReadDir(dir + ".bad")
	for _, f := range files {
		rejected = append(rejected, f.Name())
	}
	want := []string{"binary", "directory", "escape", "fifo", "id", "link", "long", "negative", "no-repository",
		"no-start", "old-alone", "other", "relative"}
	if err = cmp.Or(err, readErr); err != nil || len(pushes) != 1 || pushes[0].id() != "good" ||
		!slices.Equal(rejected, want) {
		t.Errorf("got %v, %v, rejected %q, want %q", pushes, err, rejected, want)
	}
	for _, name := range []string{"empty", "half"} {
		if _, err := os.Stat(filepath.Join(dir, name)); !os.IsNotExist(err) {
			t.Errorf("%s: got %v, want it to be removed", name, err)
		}
	}
}

// FuzzRecord checks that each record that can be read is the same after it was written.
func FuzzRecord(f *testing.F) {
	for _, agreed := range []bool{false, true} {
		var b bytes.Buffer
		r := sample()
		r.Agreed = agreed
		if err := r.write(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		want, err := readRecord(bytes.NewReader(text))
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := want.write(&b); err != nil {
			t.Fatal(err)
		}
		if got, err := readRecord(&b); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v\nwant %+v", got, err, want)
		}
	})
}
