package git

import (
	"fmt"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// RefName is the full name of a ref ("refs/heads/main") or a pseudo-ref ("HEAD").
type RefName string

// MaxRefName bounds a ref name in bytes; file systems allow no longer component anyway, and git writes no longer line.
const MaxRefName = 4096

// HEAD is the pseudo-ref that names a repository's current branch.
const HEAD RefName = "HEAD"

// ParseRefName accepts the names that `git check-ref-format` accepts below refs/, and HEAD.
func ParseRefName(s string) (RefName, error) {
	if s == string(HEAD) {
		return HEAD, nil
	}
	if !strings.HasPrefix(s, "refs/") {
		return "", fmt.Errorf("bad ref name %q: it has to be HEAD or begin with refs/", fault.Short(s))
	}
	if !IsSafeRefName(s) {
		return "", fmt.Errorf("bad ref name %q", fault.Short(s))
	}
	return RefName(s), nil
}

// IsSafeRefName applies the rules of git-check-ref-format(1) to a name with at least one slash: no component that is
// empty, begins with a dot or ends in ".lock"; no "..", "@{", control character, space or any of ~^:?*[\; no final dot.
func IsSafeRefName(s string) bool {
	if len(s) == 0 || len(s) > MaxRefName || s[len(s)-1] == '.' || !strings.Contains(s, "/") {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c == 0x7f {
			return false
		}
		switch c {
		case '~', '^', ':', '?', '*', '[', '\\':
			return false
		case '.':
			if i+1 < len(s) && s[i+1] == '.' {
				return false
			}
		case '{':
			if i > 0 && s[i-1] == '@' {
				return false
			}
		}
	}
	for component := range strings.SplitSeq(s, "/") {
		if component == "" || component[0] == '.' || strings.HasSuffix(component, ".lock") {
			return false
		}
	}
	return true
}

// RepoPath is the path of a repository below the root, as in a URL but without slashes at both ends: "team/app.git". It
// cannot leave the root: it has no empty, "." or ".." component, no backslash and no control character.
type RepoPath struct{ path string }

// MaxRepoPath bounds a repository path in bytes.
const MaxRepoPath = 1024

// ParseRepoPath reads an already percent-decoded URL path. Slashes at both ends are dropped. Below "-" is ours, so no
// repository path begins with it.
func ParseRepoPath(s string) (RepoPath, error) {
	s = strings.Trim(s, "/")
	if s == "" {
		return RepoPath{}, fmt.Errorf("no repository named")
	}
	if len(s) > MaxRepoPath {
		return RepoPath{}, fmt.Errorf("repository path longer than %d bytes", MaxRepoPath)
	}
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == 0x7f || c == '\\' {
			return RepoPath{}, fmt.Errorf("bad repository path %q: control character or backslash", fault.Short(s))
		}
	}
	for i, component := range strings.Split(s, "/") {
		switch {
		case component == "" || component == "." || component == "..":
			return RepoPath{}, fmt.Errorf("bad repository path %q: component %q", fault.Short(s), component)
		case i == 0 && component == "-":
			return RepoPath{}, fmt.Errorf("bad repository path %q: below \"-\" there are no repositories", fault.Short(s))
		}
	}
	return RepoPath{s}, nil
}

func (p RepoPath) String() string { return p.path }
