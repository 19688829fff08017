package internal_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// documents finds the project's Markdown files.
func documents(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "repos" || d.Name() == "bin" || d.Name() == "testdata"):
			return fs.SkipDir
		case strings.HasSuffix(path, ".md"):
			text, err := os.ReadFile(path)
			found[path] = string(text)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Fatal("no documents found")
	}
	return found
}

var markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestLinksHold(t *testing.T) {
	for path, text := range documents(t) {
		for _, m := range markdownLink.FindAllStringSubmatch(text, -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if target == "" || strings.Contains(target, "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), target)); err != nil {
				t.Errorf("%s links to %s, which does not exist", strings.TrimPrefix(path, "../"), m[1])
			}
		}
	}
}

var makeCommand = regexp.MustCompile("(?m)(?:^\\s*|`)make ([a-z-]+)")

func TestMakeCommandsExist(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range documents(t) {
		for _, m := range makeCommand.FindAllStringSubmatch(text, -1) {
			if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(m[1]) + `:`).Match(makefile) {
				t.Errorf("%s says \"make %s\", which is no target", strings.TrimPrefix(path, "../"), m[1])
			}
		}
	}
}
