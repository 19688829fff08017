package page

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestFile(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "x.html")
	open := func() *File {
		f, err := Open(name)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	has := func(want string) {
		t.Helper()
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	open().Close()
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file is left without a page: %v", err)
	}
	for _, page := range []string{"a longer page", "a page"} {
		f := open()
		if err := f.Write([]byte(page)); err != nil {
			t.Fatal(err)
		}
		f.Close()
		has(page)
	}
	open().Close()
	has("a page")
	if _, err := Open(filepath.Join(name, "y")); err == nil {
		t.Error("opened a file below a file, want an error")
	}
	none, err := Open("")
	if err != nil || none.Write([]byte("a page")) != nil {
		t.Error("wrote a page without a name, want no file")
	}
	none.Close()
}
