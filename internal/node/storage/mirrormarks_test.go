package storage_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// The marks of a mirror count even if its config cannot be used.
func TestMirrorMarksOfDamagedConfig(t *testing.T) {
	t.Parallel()
	for config, want := range map[string]bool{
		"[include]\n\tpath = /other\n[Packhorse]\n\tmirror = true\n": true,
		"[include]\n\tpath = /other\n[remote \"packhorse\"]\n":       false,
	} {
		for _, hasFile := range []bool{false, true} {
			dir := t.TempDir()
			files := map[string]string{"config": config, "HEAD": "ref: refs/heads/main\n"}
			if hasFile {
				files[places.MirrorFile] = "{}"
			}
			for name, content := range files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			marks, err := places.FindMirrorMarks(dir, repo.Options{})
			if err == nil || marks.Key != want || marks.File != hasFile {
				t.Errorf("FindMirrorMarks() with %q = %+v, %v, want key %v, file %v, and an error", config, marks, err, want,
					hasFile)
			}
		}
	}
}
