package pushjournal

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
)

func id(digit string) git.ObjectID { return git.MustParseObjectID(strings.Repeat(digit, 40)) }

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
	dir := t.TempDir()
	want := sample()
	e, err := Create(dir, "one", want)
	if err != nil {
		t.Fatal(err)
	}
	if !e.IsActive() {
		t.Error("the entry is not active although its file is locked")
	}
	reject := func(path string, err error) { t.Errorf("%s is rejected: %v", path, err) }
	for range 2 {
		entries, err := Read(dir, reject)
		if err != nil || len(entries) != 1 || entries[0].ID() != "one" || !reflect.DeepEqual(entries[0].Record, want) {
			t.Fatalf("got %+v, %v\nwant %+v", entries, err, want)
		}
		if err := e.MarkAgreed(); err != nil {
			t.Fatal(err)
		}
		want.Agreed = true
	}
	e.Release()
	if e.IsActive() {
		t.Error("the entry is active after Release")
	}
	e.Remove()
	if entries, err := Read(dir, reject); err != nil || len(entries) != 0 {
		t.Errorf("after Remove: got %+v, %v", entries, err)
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
	whole := strings.TrimSuffix(b.String(), "end\n")
	for at := range whole {
		if whole[:at] != "" && whole[at-1] != '\n' {
			continue
		}
		if _, err := readRecord(strings.NewReader(whole[:at])); err != errIncomplete {
			t.Errorf("%q: got %v, want %v", whole[:at], err, errIncomplete)
		}
	}
}

// Files that cannot be read are rejected, and the others are read all the same.
func TestUnreadableFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/directory", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	record := func(lines string) string {
		return version + "\ngit-dir \"/x\"\ncommon-dir \"/x\"\nstart 1\n" + lines + "end\n"
	}
	for name, text := range map[string]string{
		"empty": "", "half": version + "\ngit-dir \"/x\"\n", "good": record(""),
		"other": "{}\n", "no-repository": version + "\nend\n", "no-start": version +
			"\ngit-dir \"/x\"\ncommon-dir \"/x\"\nend\n", "relative": version + "\ngit-dir \"x\"\ncommon-dir \"/x\"\nend\n",
		"unquoted": record("ref - refs/heads/x\n"), "escape": record("ref - \"refs/../../x\"\n"), "word": record("unknown\n"),
		"binary": "\x00\xff\n\n", "long": record("ref - \"" + strings.Repeat("x", maxLine) + "\"\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var rejected []string
	entries, err := Read(dir, func(path string, _ error) { rejected = append(rejected, filepath.Base(path)) })
	want := []string{"binary", "directory", "escape", "fifo", "link", "long", "no-repository", "no-start", "other",
		"relative", "unquoted", "word"}
	if err != nil || len(entries) != 1 || entries[0].ID() != "good" || !slices.Equal(rejected, want) {
		t.Errorf("got %v, %v, rejected %q, want %q", entries, err, rejected, want)
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
	f.Add([]byte(version + "\ngit-dir \"/x\"\ncommon-dir \"/x\"\nstart 1\nend\nmore\n"))
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
