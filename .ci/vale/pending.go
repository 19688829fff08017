package main

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// pendingList holds the lines of the pending file. Each is the path of a file or of a directory, or a pattern of
// path.Match. A directory stands for the files directly in it, except for Go's tests.
type pendingList []string

// readPending reads the file name. A file that does not exist is an empty list.
func readPending(name string) (pendingList, error) {
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var list pendingList
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			list = append(list, line)
		}
	}
	return list, nil
}

// write writes the list without the lines in stale. Comments stay.
func (list pendingList) write(name string, stale []string) error {
	text, err := os.ReadFile(name)
	if err != nil || len(stale) == 0 {
		return err
	}
	var kept strings.Builder
	for line := range strings.Lines(string(text)) {
		if !slices.Contains(stale, strings.TrimSpace(line)) {
			kept.WriteString(line)
		}
	}
	return os.WriteFile(name, []byte(kept.String()), 0o644)
}

// covers reports whether the line of the list stands for file.
func covers(line, file string) bool {
	if line == file {
		return true
	}
	if path.Dir(file) == line {
		return !strings.HasSuffix(file, "_test.go")
	}
	matched, err := path.Match(line, file)
	return err == nil && matched
}

// covering returns the lines that stand for one of files.
func (list pendingList) covering(files []string) []string {
	var lines []string
	for _, line := range list {
		if slices.ContainsFunc(files, func(file string) bool { return covers(line, file) }) {
			lines = append(lines, line)
		}
	}
	return lines
}

// split returns the findings in files that no line stands for, and the lines that stand for no finding.
func (list pendingList) split(found []finding) (unexpected []finding, stale []string) {
	used := map[string]bool{}
	for _, f := range found {
		excused := false
		for _, line := range list {
			if covers(line, f.file) {
				used[line], excused = true, true
			}
		}
		if !excused {
			unexpected = append(unexpected, f)
		}
	}
	for _, line := range list {
		if !used[line] {
			stale = append(stale, line)
		}
	}
	return unexpected, stale
}
