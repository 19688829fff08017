package edit

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// maxPath is the maximum length of a path in bytes.
const maxPath = 4096

// CheckPath returns an error unless git accepts the path of a file in all file systems: verify_path in git's
// read-cache.c, with core.protectHFS and core.protectNTFS. The mode is that of the file, because a symbolic link must
// not be named .gitmodules.
func CheckPath(path string, mode uint32) error {
	switch {
	case path == "":
		return fault.New(fault.Invalid, "the path is empty")
	case len(path) > maxPath:
		return fault.New(fault.Invalid, "the path has %d bytes, and at most %d are allowed", len(path), maxPath)
	case strings.IndexByte(path, 0) >= 0:
		return fault.New(fault.Invalid, "%q: a path has no NUL byte", fault.Short(path))
	}
	for component := range strings.SplitSeq(path, "/") {
		if component == "" || component == "." || component == ".." {
			return fault.New(fault.Invalid, "%q: a path has no empty component, and no . or ..", fault.Short(path))
		}
		hfs := hfsName(component)
		isDotgit := hfs == ".git" || isNTFSDotgit(component)
		isModules := hfs == ".gitmodules" || isNTFSDotgitmodules(component)
		for i := range len(component) {
			if component[i] == '\\' { // on Windows it begins a component, too
				isDotgit = isDotgit || isNTFSDotgit(component[i+1:])
				isModules = isModules || isNTFSDotgitmodules(component[i+1:])
			}
		}
		switch {
		case isDotgit:
			return fault.New(fault.Invalid, "%q: %q is .git on some file systems", fault.Short(path), fault.Short(component))
		case isModules && mode == pack.ModeSymlink:
			return fault.New(fault.Invalid, "%q: .gitmodules must not be a symbolic link", fault.Short(path))
		}
	}
	return nil
}

// hfsName returns a name as HFS+ compares it, if it is ASCII, in lower case. It ends at malformed UTF-8.
func hfsName(name string) string {
	var b []byte
	for len(name) > 0 {
		r, size := utf8.DecodeRuneInString(name)
		switch {
		case r == utf8.RuneError && size == 1 || r == 0xfffe || r == 0xffff:
			return string(b)
		case 0x200c <= r && r <= 0x200f, 0x202a <= r && r <= 0x202e, 0x206a <= r && r <= 0x206f, r == 0xfeff: // ignored
		case r > 127:
			return ""
		default:
			b = append(b, byte(r))
		}
		name = name[size:]
	}
	return string(bytes.ToLower(b))
}

// hasNTFSEnd reports whether the rest of a name means nothing on NTFS: dots and spaces, and then the end or the name of
// a stream.
func hasNTFSEnd(rest string) bool {
	rest = strings.TrimLeft(rest, ". ")
	return rest == "" || rest[0] == ':'
}

// isNTFSDotgit reports whether a name is .git on NTFS, where git~1 is its short name (is_ntfs_dotgit in git's path.c).
func isNTFSDotgit(name string) bool {
	name, _, _ = strings.Cut(name, `\`)
	for _, dotgit := range []string{".git", "git~1"} {
		if n := len(dotgit); len(name) >= n && strings.EqualFold(name[:n], dotgit) && hasNTFSEnd(name[n:]) {
			return true
		}
	}
	return false
}

// isNTFSDotgitmodules reports whether a name is .gitmodules on NTFS, where gitmod~1 to gitmod~4 and gi7eba~1 and others
// are its short names (is_ntfs_dotgitmodules in git's path.c).
func isNTFSDotgitmodules(name string) bool {
	const long, short, hashed = ".gitmodules", "gitmod~", "gi7eba"
	lower := strings.ToLower(name)
	if strings.HasPrefix(lower, long) {
		return hasNTFSEnd(name[len(long):])
	}
	if len(name) < 8 {
		return false
	}
	if strings.HasPrefix(lower, short) && '1' <= name[7] && name[7] <= '4' {
		return hasNTFSEnd(name[8:])
	}
	letters, digits, ok := strings.Cut(lower[:8], "~")
	return ok && strings.HasPrefix(hashed, letters) && digits != "" && digits[0] != '0' &&
		strings.Trim(digits, "0123456789") == "" && hasNTFSEnd(name[8:])
}
