package statedir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/server/cli"
)

// TestFormat opens state directories of this version, of an older one and of a newer one.
func TestFormat(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, formatName)
	for _, older := range []string{"", `{"format":1,"version":"0.0.9"}`, `{"format":1,"version":"9.0.0"}`} {
		if older != "" {
			if err := os.WriteFile(file, []byte(older), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		d, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		d.Close()
		if f, err := ReadFormat(dir); err != nil || f != (Formatted{Format, cli.Version}) {
			t.Errorf("format after %q = %v (%v)", older, f, err)
		}
	}
	for text, want := range map[string]string{`{"format":2,"version":"9.0.0"}`: "format 2 of packhorse 9.0.0", "": file,
		"{": file, "{}": file, "null": file, `{"format":0}`: file, `{"format":-5}`: file} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(dir)
		if err == nil || !strings.Contains(err.Error(), want) || fault.Is(err, fault.Invalid) != (want != file) {
			t.Errorf("Open with %q: error = %v, want %q", text, err, want)
		}
		if kept, _ := os.ReadFile(file); string(kept) != text {
			t.Errorf("the format was changed from %q to %q", text, kept)
		}
	}
}
