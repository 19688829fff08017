package pack

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

const (
	// maxAlternateDepth is the maximum length of a chain of alternates whose last one's alternates are read.
	maxAlternateDepth = 5
	maxAlternates     = 256     // object directories in all
	maxAlternatesFile = 1 << 20 // bytes
)

// parseAlternates reads objects/info/alternates (gitrepository-layout, "objects/info/alternates"): a path on each line.
// '#' begins a comment line, and a path in double quotes is unquoted as in C. As in git, an invalid quoted path is used
// unchanged.
func parseAlternates(b []byte) []string {
	var paths []string
	for len(b) > 0 {
		if b[0] == '"' {
			if path, rest, ok := unquote(b); ok {
				if len(path) > 0 {
					paths = append(paths, path)
				}
				b = rest[min(1, len(rest)):] // git skips one character here, whatever it is
				continue
			}
		}
		line, rest, _ := bytes.Cut(b, []byte{'\n'})
		if len(line) > 0 && line[0] != '#' {
			paths = append(paths, string(line))
		}
		b = rest
	}
	return paths
}

// unquote reads a C-style quoted string at the start of b.
func unquote(b []byte) (string, []byte, bool) {
	var out []byte
	for i := 1; i < len(b); i++ {
		switch c := b[i]; c {
		case '"':
			return string(out), b[i+1:], true
		case '\\':
			i++
			if i == len(b) {
				return "", nil, false
			}
			if at := strings.IndexByte(`abfnrtv\"`, b[i]); at >= 0 {
				out = append(out, "\a\b\f\n\r\t\v\\\""[at])
				continue
			}
			if i+2 >= len(b) || b[i] < '0' || b[i] > '3' || !octal(b[i+1]) || !octal(b[i+2]) {
				return "", nil, false
			}
			out = append(out, (b[i]-'0')<<6|(b[i+1]-'0')<<3|(b[i+2]-'0'))
			i += 2
		default:
			out = append(out, c)
		}
	}
	return "", nil, false
}

func octal(c byte) bool { return '0' <= c && c <= '7' }

// readAlternates reads the alternates file of an object directory; nil if there is none.
func readAlternates(path string) ([]string, error) {
	f, err := disk.Open(path)
	if isAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxAlternatesFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxAlternatesFile {
		return nil, fault.New(fault.Invalid, "objects/info/alternates of the repository is longer than %d bytes",
			maxAlternatesFile)
	}
	return parseAlternates(b), nil
}

// Alternates returns the paths in objects/info/alternates of an object directory, made absolute. They may pass through
// symbolic links, and need not exist. It returns none if there is no such file. The directory's path must not contain
// symbolic links, because relative entries start there.
func Alternates(objectsDir string) ([]string, error) {
	entries, err := readAlternates(filepath.Join(objectsDir, "info", "alternates"))
	for i, entry := range entries {
		if !filepath.IsAbs(entry) {
			entries[i] = objectsDir + "/" + entry // not cleaned: ".." after a link is the parent of the link's target
		}
	}
	return entries, err
}

// errNoAlternate means that an alternate names no directory.
type errNoAlternate struct{ path string }

func (e errNoAlternate) Error() string {
	return "the alternate object directory " + e.path + " does not exist"
}

// resolveAlternate turns an entry of an object directory's alternates into a path without symbolic links, inside the
// root if there is one.
func (s *Store) resolveAlternate(dir, entry string) (string, error) {
	if strings.IndexByte(entry, 0) >= 0 {
		return "", errNoAlternate{entry}
	}
	path := entry
	if !filepath.IsAbs(path) {
		path = dir + "/" + path // not cleaned: ".." after a link is the parent of the link's target, as in git
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		if clean := filepath.Clean(path); s.root != "" && !disk.Below(s.root, clean) && !disk.Below(s.plainRoot,
			clean) {
			return "", errEscape(path) // whether the path exists or not
		}
		if _, plain := os.Stat(path); isAbsent(err) || leadsNowhere(plain) {
			return "", errNoAlternate{path}
		}
		return "", err
	}
	if s.root != "" && !disk.Below(s.root, real) {
		return "", errEscape(path)
	}
	info, err := os.Stat(real)
	if err != nil && !isAbsent(err) {
		return "", err
	}
	if err != nil || !info.IsDir() {
		return "", errNoAlternate{path}
	}
	return real, nil
}

// leadsNowhere reports whether a path is too long, or a loop of links, by the error of a system call. Git skips such an
// alternate too.
func leadsNowhere(err error) bool {
	return errors.Is(err, syscall.ENAMETOOLONG) || errors.Is(err, syscall.ELOOP)
}

// contained returns an error if a file or directory of an object directory is a link to outside the root. A missing one
// is not an error.
func (s *Store) contained(path string) error {
	if s.root == "" {
		return nil
	}
	real, err := filepath.EvalSymlinks(path)
	if isAbsent(err) {
		return nil
	}
	if err == nil && !disk.Below(s.root, real) {
		err = fault.Wrap(fault.Denied,
			"a part of the repository's object directory is a link to outside the served root", errors.New(path))
	}
	return err
}

func errEscape(path string) error {
	return fault.Wrap(fault.Denied,
		"objects/info/alternates of the repository names a directory outside the served root", errors.New(path))
}
