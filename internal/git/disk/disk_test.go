package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// TestOpenOnlyRegularFiles would hang on the pipe if Open waited.
func TestOpenOnlyRegularFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := unix.Mkfifo(path("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0); err != nil {
		t.Fatal(err)
	} else if t.Cleanup(func() { unix.Close(fd) }); unix.Bind(fd, &unix.SockaddrUnix{Name: path("s")}) != nil {
		t.Log("no socket: its name is too long here")
	}
	for link, target := range map[string]string{"to-pipe": "pipe", "to-file": "file", "to-device": os.DevNull} {
		if err := os.Symlink(target, path(link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path("file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pipe", "to-pipe", "to-device", "s", "."} {
		if _, err := os.Lstat(path(name)); err != nil {
			continue
		}
		_, err := Open(path(name))
		if !fault.Is(err, fault.Corrupt) || strings.Contains(fault.Message(err), dir) || !strings.Contains(err.Error(),
			dir) {
			t.Errorf("%s: %v; want Corrupt with the path in the cause alone", name, err)
		}
	}
	for _, name := range []string{"file", "to-file"} {
		f, err := Open(path(name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if text, err := io.ReadAll(f); string(text) != "text" || err != nil {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if _, err := Open(path("none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
}

func TestStat(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	for _, nothing := range []string{file, file + "/below"} {
		if id, err := Stat(nothing); id != (ID{}) || err != nil {
			t.Errorf("%s: %v, %v", nothing, id, err)
		}
		if err := os.WriteFile(file, []byte("one"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first, err := Stat(file)
	if err != nil || first == (ID{}) || first.Size != 3 {
		t.Fatalf("%v, %v", first, err)
	}
	if again, err := Stat(file); again != first || err != nil {
		t.Errorf("%v became %v, %v", first, again, err)
	}
	if err := os.Rename(file, file+"2"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if other, err := Stat(file); other == first || err != nil {
		t.Errorf("another file: %v, %v", other, err)
	}
	if _, err := Stat("a\x00b"); err == nil {
		t.Error("a path with a NUL byte: got no error, want one")
	}
}

func TestSettled(t *testing.T) {
	t.Parallel()
	const base = 1_700_000_000 * int64(time.Second)
	ms := int64(time.Millisecond)
	for _, c := range []struct {
		mtime, ctime, now int64
		want              bool
	}{
		{base + 1, base + 1, base + 20*ms, false},
		{base + 1, base + 1, base + 26*ms, true},
		{base + 1, base + 20*ms, base + 26*ms, false}, // moved here since
		{base, base, base + 1500*ms, false},
		{base, base, base + 2010*ms, false},
		{base, base, base + 2025*ms, true},
		{base - 3600*1000*ms, base + 1, base + 100*ms, false}, // one of the stamps is coarse
		{base + 5000*ms, base + 1, base + 100*ms, false},      // from the future
	} {
		id := ID{Ino: 1, Mtime: c.mtime, Ctime: c.ctime}
		if got := id.Settled(time.Unix(0, c.now)); got != c.want {
			t.Errorf("mtime +%d ctime +%d now +%d: settled %v, want %v", c.mtime-base, c.ctime-base, c.now-base, got, c.want)
		}
	}
	if !(ID{}).Settled(time.Unix(0, 0)) {
		t.Error("no change is not settled, want it settled")
	}
}

func TestBelow(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		dir, path string
		is        bool
	}{
		{"/srv", "/srv", true}, {"/srv", "/srv/a/b", true}, {"/srv", "/srva", false}, {"/srv", "/", false}, {"/srv/a",
			"/srv", false},
		{"/", "/", true}, {"/", "/srv", true},
	} {
		if Below(test.dir, test.path) != test.is {
			t.Errorf("%s below %s: %v", test.path, test.dir, !test.is)
		}
	}
}
