package command

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestMain puts a packhorse-search into PATH, because checks report a missing one. It fails at once.
func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "packhorse-command")
	if err == nil {
		defer os.RemoveAll(dir)
		err = os.WriteFile(filepath.Join(dir, "packhorse-search"), []byte("#!/bin/false\n"), 0o700)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	os.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	return m.Run()
}
