package statedir

import (
	"os"
	"path/filepath"
	"testing"
)

// TestChownChecksIdentity checks that root changes the owner of its own files, and not of their replacements.
func TestChownChecksIdentity(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	dir, o := t.TempDir(), Owner{12345, 12345}
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(path("roots"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(string) error{
		"link":      func(at string) error { return os.Symlink("roots", at) },
		"hard link": func(at string) error { return os.Link(path("roots"), at) },
	} {
		if err := make(path(name)); err != nil {
			t.Fatal(err)
		}
		if err := o.own(path(name)); err == nil {
			t.Errorf("a %s was given away", name)
		}
		if err := os.Remove(path(name)); err != nil {
			t.Fatal(err)
		}
	}
	if of, err := OwnerOf(path("roots")); err != nil || of.Uid != 0 {
		t.Errorf("root's file is %v's (%v)", of, err)
	}
	if err := o.mkdirAll(path("new/er")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"new", "new/er"} {
		if of, err := OwnerOf(path(name)); err != nil || of != o {
			t.Errorf("%s is %v's (%v)", name, of, err)
		}
	}
}
