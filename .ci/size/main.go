// Command size counts the lines of code of the module, without comments, blank lines and generated code. It prints
// those that the server links, those that only packhorse-bench and packhorse-search link, and those of tests. It also
// counts packages, configuration keys, metrics, and the words in documents.
//
//	size                  prints the numbers
//	size -packages        prints lines of code for each package
//	size -check FILE      fails if a number is larger than the one in FILE, which has lines as printed by size
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/scanner"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func main() {
	check := flag.String("check", "", "fail if a number is larger than in this `file`")
	packages := flag.Bool("packages", false, "print lines of code for each package")
	flag.Parse()
	if err := run(*check, *packages); err != nil {
		fmt.Fprintln(os.Stderr, "size:", err)
		os.Exit(1)
	}
}

type goPackage struct {
	ImportPath, Dir                    string
	GoFiles, TestGoFiles, XTestGoFiles []string
	IgnoredGoFiles                     []string
}

// number is a line of the result.
type number struct {
	name  string
	count int
}

func run(check string, perPackage bool) error {
	all, err := list("./...")
	if err != nil {
		return err
	}
	linked := map[string][]string{} // the programs that link a package
	for _, program := range []string{"packhorse", "packhorse-bench", "packhorse-search"} {
		deps, err := list("-deps", "./cmd/"+program)
		if err != nil {
			return err
		}
		for _, p := range deps {
			linked[p.ImportPath] = append(linked[p.ImportPath], program)
		}
	}
	lines := map[string]int{}
	tests := 0
	for _, p := range all {
		code := 0
		for _, name := range slices.Concat(p.GoFiles, p.IgnoredGoFiles) {
			n, err := countLines(filepath.Join(p.Dir, name))
			if err != nil {
				return err
			}
			if strings.HasSuffix(name, "_test.go") {
				tests += n
			} else {
				code += n
			}
		}
		for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			n, err := countLines(filepath.Join(p.Dir, name))
			if err != nil {
				return err
			}
			tests += n
		}
		if perPackage {
			fmt.Printf("%6d %s\n", code, p.ImportPath[strings.Index(p.ImportPath, "/packhorse")+1:])
		}
		switch programs := linked[p.ImportPath]; {
		case slices.Contains(programs, "packhorse"):
			lines["packhorse"] += code
		case len(programs) == 0:
			tests += code // packages that only tests import, and public ones
		default:
			lines[programs[0]] += code
		}
	}
	if perPackage {
		return nil
	}
	keys, err1 := matches("docs/reference/config.md", "(?m)^\\| `[a-z]")
	metrics, err2 := matches("docs/reference/metrics.md", "(?m)^\\| `packhorse_")
	words, err3 := documentWords()
	below, err4 := folders("internal")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	return report([]number{
		{"lines linked by packhorse", lines["packhorse"]},
		{"lines only in packhorse-bench", lines["packhorse-bench"]},
		{"lines only in packhorse-search", lines["packhorse-search"]},
		{"lines of tests", tests},
		{"packages", len(all)},
		{"folders below internal", below},
		{"configuration keys", keys},
		{"metrics", metrics},
		{"words in documents", words},
	}, check)
}

func list(arguments ...string) (packages []goPackage, err error) {
	cmd := exec.Command("go", append([]string{"list", "-e",
		"-json=ImportPath,Dir,GoFiles,TestGoFiles,XTestGoFiles,IgnoredGoFiles,Standard"}, arguments...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
}

// countLines counts the lines of a file that have a token. Generated files have none.
func countLines(name string) (int, error) {
	text, err := os.ReadFile(name)
	if err != nil || bytes.HasPrefix(text, []byte("// Code generated ")) {
		return 0, err
	}
	files := token.NewFileSet()
	file := files.AddFile(name, -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0) // without comments
	lines, last := 0, 0
	for {
		at, tok, literal := s.Scan()
		if tok == token.EOF {
			return lines, nil
		}
		if tok == token.SEMICOLON && literal == "\n" {
			continue
		}
		first := file.Line(at)
		end := first + strings.Count(literal, "\n")
		lines += end - max(first-1, last)
		last = end
	}
}

func folders(dir string) (count int, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			count++
		}
	}
	return count, err
}

func matches(name, pattern string) (int, error) {
	text, err := os.ReadFile(name)
	return len(regexp.MustCompile(pattern).FindAll(text, -1)), err
}

func documentWords() (words int, err error) {
	pages, err := filepath.Glob("*.md")
	if err != nil {
		return 0, err
	}
	more, err := filepath.Glob("docs/*/*.md")
	for _, name := range slices.Concat(pages, []string{"docs/README.md"}, more) {
		if name == "docs/reference/commands.md" { // the help texts of commands
			continue
		}
		text, readErr := os.ReadFile(name)
		err = errors.Join(err, readErr)
		words += len(bytes.Fields(text))
	}
	return words, err
}

// report prints the numbers. It compares them with those of the file named by check.
func report(numbers []number, check string) error {
	if check == "" {
		for _, n := range numbers {
			fmt.Printf("%7d %s\n", n.count, n.name)
		}
		return nil
	}
	text, err := os.ReadFile(check)
	if err != nil {
		return err
	}
	limits := map[string]int{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		count, name, _ := strings.Cut(line, " ")
		if limits[name], err = strconv.Atoi(count); err != nil {
			return fmt.Errorf("%s: %q: want a number and a name", check, line)
		}
	}
	for _, n := range numbers {
		if limit, ok := limits[n.name]; ok && n.count > limit {
			err = errors.Join(err, fmt.Errorf("%s: %d, and %s allows %d. Remove something, or raise the number there and "+
				"state the reason in the commit", n.name, n.count, check, limit))
		}
	}
	return err
}
