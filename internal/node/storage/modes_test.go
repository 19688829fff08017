package storage

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A node does not ask whether its repositories are directories or in a store: places.Places and places.Place are the
// difference. New chooses them. Only hooks have to know it, because those of local copies never run, and the clean-up
// after killed pushes, which a store does not need.
func TestNoChecksOfTheMode(t *testing.T) {
	check := regexp.MustCompile(`[pP]laces? [!=]= nil|\.\(\*(places\.)?(Directories|dirPlace)\)|IsCopy\(\)`)
	var files []string
	for _, dir := range []string{"storage", "watch", "ingest", "gc", "control", "lookup", "uploadpack", "receivepack"} {
		found, err := filepath.Glob("../" + dir + "/*.go")
		if err != nil || len(found) == 0 {
			t.Fatalf("no files of %s: %v", dir, err)
		}
		files = append(files, found...)
	}
	choices := map[string]string{"../storage/storage.go": "n.places == nil {",
		"../receivepack/receivepack.go": "if r.IsCopy() {", "../storage/maintain.go": "&& !h.IsCopy() {",
		"../storage/maintainer.go": "&& !h.IsCopy() { // any member"}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			isChoice := slices.ContainsFunc(strings.Split(choices[file], "|"), func(choice string) bool {
				return choice != "" && strings.Contains(line, choice)
			})
			if !strings.HasSuffix(file, "_test.go") && check.MatchString(line) && !isChoice {
				t.Errorf("%s:%d checks the mode: %s", file, i+1, line)
			}
		}
	}
}
