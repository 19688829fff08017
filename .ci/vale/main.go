// Command vale checks the project's prose. It extracts comments and texts from the sources, runs vale on them and on
// the Markdown pages, and checks the width of lines. The script .ci/prose calls it.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	vale := flag.String("vale", "bin/tools/vale", "path of vale")
	flag.Parse()
	ok, err := run(*vale, flag.Args())
	if err != nil {
		fmt.Fprintf(os.Stderr, "prose: %v\n", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// run checks the files below paths, or the whole tree if there are no paths. It reports whether everything is clean.
func run(vale string, paths []string) (bool, error) {
	files, err := sourceFiles(paths)
	if err != nil {
		return false, err
	}
	found, err := check(vale, files)
	if err != nil {
		return false, err
	}
	for _, f := range found {
		fmt.Printf("%s:%d: %s\n", f.file, f.line, f.text)
	}
	return len(found) == 0, nil
}

// A finding is a violation of a rule.
type finding struct {
	file string
	line int
	text string
}

// sourceFiles lists the files of the tree that are checked, or those that are or lie below one of paths.
func sourceFiles(paths []string) ([]string, error) {
	args := []string{"ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"}
	cmd := exec.Command("git", append(args, paths...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w: %s", err, &stderr)
	}
	var files []string
	for name := range strings.SplitSeq(string(out), "\x00") {
		if name == "" || extractor(name) == nil && !strings.HasSuffix(name, ".md") {
			continue
		}
		if _, err := os.Stat(name); err == nil { // deleted files stay in the index until the next git add
			files = append(files, name)
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no files to check in %q", paths)
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

// check returns the findings in files, in their order.
func check(vale string, files []string) ([]finding, error) {
	dir, err := os.MkdirTemp("", "prose-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var found []finding
	lines := map[string][]int{} // of each extracted file: the line of the source for each of its lines
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if isGenerated(name, text) {
			continue
		}
		found = append(found, wideLines(name, text)...)
		target := name
		if extract := extractor(name); extract != nil {
			paragraphs, err := extract(name, text)
			if err != nil {
				return nil, err
			}
			target += ".txt"
			text, lines[target] = render(paragraphs)
		} else {
			text = []byte(hideDots(string(text)))
		}
		target = filepath.Join(dir, filepath.FromSlash(target))
		if err := errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.WriteFile(target, text, 0o644)); err != nil {
			return nil, err
		}
	}
	prose, err := runVale(vale, dir, lines)
	if err != nil {
		return nil, err
	}
	found = append(found, prose...)
	slices.SortStableFunc(found, func(a, b finding) int {
		if c := strings.Compare(a.file, b.file); c != 0 {
			return c
		}
		return a.line - b.line
	})
	return found, nil
}

// runVale runs vale on the files below dir. Lines of files that occur in lines are translated by it.
func runVale(vale, dir string, lines map[string][]int) ([]finding, error) {
	config, err := filepath.Abs(".ci/vale/vale.ini")
	if err != nil {
		return nil, err
	}
	if vale, err = filepath.Abs(vale); err != nil {
		return nil, err
	}
	cmd := exec.Command(vale, "--no-global", "--no-exit", "--config", config, "--output", "JSON", ".")
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s%s", vale, err, out, &stderr)
	}
	var alerts map[string][]struct {
		Line           int
		Message, Match string
	}
	if err := json.Unmarshal(out, &alerts); err != nil {
		return nil, fmt.Errorf("%s: output: %w: %.500s", vale, err, out)
	}
	var found []finding
	for name, list := range alerts {
		for _, a := range list {
			f := finding{filepath.ToSlash(name), a.Line, a.Message}
			if source, ok := lines[f.file]; ok {
				f.file = strings.TrimSuffix(f.file, ".txt")
				f.line = source[min(max(a.Line, 1), len(source))-1]
			}
			found = append(found, f)
		}
	}
	return found, nil
}
