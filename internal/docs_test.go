package internal_test

import (
	"fmt"
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

var (
	markdownLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	markdownBlock   = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	markdownHeading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notInAnchors    = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

func TestLinksHold(t *testing.T) {
	anchors := map[string]map[string]bool{} // of documents, as Git hosts make them
	all := documents(t)
	for path, text := range all {
		anchors[path] = map[string]bool{}
		for _, m := range markdownHeading.FindAllStringSubmatch(markdownBlock.ReplaceAllString(text, ""), -1) {
			name := strings.ReplaceAll(notInAnchors.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
			anchor := name
			for i := 1; anchors[path][anchor]; i++ {
				anchor = fmt.Sprint(name, "-", i)
			}
			anchors[path][anchor] = true
		}
	}
	for path, text := range all {
		for _, m := range markdownLink.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s, which does not exist", strings.TrimPrefix(path, "../"), m[1])
			} else if known := anchors[file]; anchor != "" && known != nil && !known[anchor] {
				t.Errorf("%s links to %s, which has no such heading", strings.TrimPrefix(path, "../"), m[1])
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
