// Package migrate reads the configuration of other Git servers, and writes that of Packhorse: groups, rules, keys and
// settings of repositories. It reads files as data and runs nothing of them. Each line without an equivalent becomes a
// note. A permission that is not understood is left out, and a refusal that is not understood is for everything.
package migrate

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// Result is the configuration of another server.
type Result struct {
	Groups       []auth.GroupSpec  `json:"groups"`
	Rules        []auth.RuleSpec   `json:"rules"`
	Keys         map[string]string `json:"keys"` // lines of authorized_keys, by user
	Repositories []*Repository     `json:"repositories"`
	Notes        []Note            `json:"notes"`

	byPath map[string]*Repository
	read   map[string]bool // files

	section string // of the next repositories of a cgitrc
}

// Repository is a repository with its settings.
type Repository struct {
	Path        string `json:"path"`
	Dir         string `json:"dir,omitempty"` // where it is; empty: not known
	Description string `json:"description,omitempty"`
	Owner       string `json:"owner,omitempty"`
	Category    string `json:"category,omitempty"`
	Unlisted    bool   `json:"unlisted,omitempty"` // pages do not list it
}

// Note is a line that has no equivalent.
type Note struct {
	File string `json:"file"`
	Line int    `json:"line,omitempty"`
	Text string `json:"text"`
}

func (n Note) String() string {
	if n.Line == 0 {
		return n.File + ": " + n.Text
	}
	return fmt.Sprintf("%s:%d: %s", n.File, n.Line, n.Text)
}

func newResult() *Result {
	return &Result{Groups: []auth.GroupSpec{}, Rules: []auth.RuleSpec{}, Keys: map[string]string{},
		Repositories: []*Repository{}, Notes: []Note{}, byPath: map[string]*Repository{},
		read: map[string]bool{}}
}

func (r *Result) note(at line, format string, args ...any) {
	r.Notes = append(r.Notes, Note{at.file, at.number, fmt.Sprintf(format, args...)})
}

// repository returns the entry of a path, which is added if necessary.
func (r *Result) repository(path string) *Repository {
	if r.byPath[path] == nil {
		r.byPath[path] = &Repository{Path: path}
		r.Repositories = append(r.Repositories, r.byPath[path])
	}
	return r.byPath[path]
}

// line is a line of a file.
type line struct {
	file   string
	number int
	text   string
}

const (
	maxLine  = 1 << 20
	maxFiles = 1000
)

// noEquivalent is the text of a note. It has nothing of the line, because files are named by other files and may have
// secrets.
const noEquivalent = "it has no equivalent"

// lines reads the lines of a file that was not read before.
func (r *Result) lines(file string) ([]line, error) {
	if r.read[file] {
		return nil, nil
	}
	if len(r.read) == maxFiles {
		return nil, fault.New(fault.Invalid, "%s: more than %d files are included", file, maxFiles)
	}
	r.read[file] = true
	return linesOf(file)
}

// linesOf reads the lines of a file, without white space around them.
func linesOf(file string) (lines []line, err error) {
	f, err := disk.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, maxLine)
	for s.Scan() {
		lines = append(lines, line{file, len(lines) + 1, strings.TrimSpace(s.Text())})
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return lines, nil
}

// Access returns the groups and rules as tables for a configuration, which may have a table [auth] before.
func (r *Result) Access() string {
	type tables struct {
		Group []auth.GroupSpec `toml:"group,omitempty"`
		Rule  []auth.RuleSpec  `toml:"rule,omitempty"`
	}
	text, _ := toml.Marshal(map[string]tables{"auth": {r.Groups, r.Rules}}) // it fails for other types only
	return strings.TrimPrefix(string(text), "[auth]\n")
}

// Commands returns a shell script that copies repositories whose directories are known to $ROOT and configures all.
func (r *Result) Commands() string {
	var b strings.Builder
	b.WriteString("#!/bin/sh\n" +
		"# It can be run again: existing repositories are not replaced.\n" +
		"set -eu\n: \"${ROOT:?set ROOT}\"\n")
	for _, repo := range r.Repositories {
		path := quote(strings.TrimSuffix(repo.Path, ".git"))
		if repo.Dir != "" {
			fmt.Fprintf(&b, "packhorse repo info --root \"$ROOT\" -- %s >/dev/null 2>&1 ||\n\t", path)
			fmt.Fprintf(&b, "packhorse repo import --root \"$ROOT\" -- %s %s\n", path, quote(repo.Dir))
		}
		if repo.Unlisted {
			fmt.Fprintf(&b, "packhorse repo set --root \"$ROOT\" --unlisted -- %s\n", path)
		}
		for name, value := range map[string]string{"description": repo.Description, "owner": repo.Owner,
			"category": repo.Category} {
			if value != "" {
				fmt.Fprintf(&b, "packhorse repo set --root \"$ROOT\" --%s %s -- %s\n", name, quote(value), path)
			}
		}
	}
	return b.String()
}

// quote returns a word of a shell command.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Write writes the result to a new directory: access.toml, keys/USER and repositories.sh.
func (r *Result) Write(dir string) error {
	err := cmp.Or(os.MkdirAll(filepath.Dir(dir), 0o755), os.Mkdir(dir, 0o755))
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("%s exists, and nothing is replaced: name another directory", dir)
	}
	files := map[string]string{"access.toml": r.Access(), "repositories.sh": r.Commands()}
	for user, keys := range r.Keys {
		files[filepath.Join("keys", user)] = keys
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err == nil {
			err = cmp.Or(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
		}
	}
	return err
}

// check sorts the result. The error is of rules that Packhorse does not accept.
func (r *Result) check() (*Result, error) {
	slices.SortFunc(r.Repositories, func(a, b *Repository) int { return strings.Compare(a.Path, b.Path) })
	_, err := auth.ParseRules(r.Groups, r.Rules, func(i int) string { return fmt.Sprintf("rule %d", i+1) })
	return r, err
}
