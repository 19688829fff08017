package storage

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A node does not ask whether its repositories are directories or in a store: Places and Place are the difference. New
// chooses them.
func TestNoChecksOfTheMode(t *testing.T) {
	check := regexp.MustCompile(`[pP]laces? [!=]= nil|\.\(\*directories\)|\.\(\*dirPlace\)`)
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			isChoice := file == "storage.go" && strings.TrimSpace(line) == "if n.places == nil {"
			if !strings.HasSuffix(file, "_test.go") && check.MatchString(line) && !isChoice {
				t.Errorf("%s:%d checks the mode: %s", file, i+1, line)
			}
		}
	}
}
