package refs

import (
	"bytes"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
)

// looseLimit bounds what is read of a loose ref: a symbolic ref to the longest name, and some white space.
const looseLimit = git.MaxRefName + 64

type contentKind uint8

const (
	broken contentKind = iota
	direct
	symbolic
)

// content is what a loose ref or HEAD says.
type content struct {
	link git.RefName // symbolic: what it points at, which may be symbolic itself
	id   git.ObjectID
	kind contentKind
}

// parseLoose reads the first looseLimit bytes of a loose ref, by the rules of gitrepository-layout and git-symbolic-ref.
func parseLoose(b []byte, format git.ObjectFormat) content {
	if rest, ok := bytes.CutPrefix(b, []byte("ref:")); ok {
		if len(b) >= looseLimit {
			return content{}
		}
		return linkTo(string(bytes.Trim(rest, whiteSpace)))
	}
	n := format.HexSize()
	if len(b) < n || len(b) > n && strings.IndexByte(whiteSpace, b[n]) < 0 {
		return content{}
	}
	id, err := git.ParseObjectID(b[:n])
	if err != nil || id.IsZero() {
		return content{}
	}
	return content{id: id, kind: direct}
}

// parseSymlink reads the text of a symbolic link in a loose ref's place.
func parseSymlink(text string) content {
	if !strings.HasPrefix(text, "refs/") {
		return content{}
	}
	return linkTo(text)
}

// whiteSpace is what Git takes for it.
const whiteSpace = " \t\n\r"

func linkTo(name string) content {
	target, err := git.ParseRefName(name)
	if err != nil {
		return content{}
	}
	return content{link: target, kind: symbolic}
}

// isRefName is git.ParseRefName for names in packed-refs: quick for ordinary names.
func isRefName(name []byte) bool {
	const prefix = "refs/"
	if !bytes.HasPrefix(name, []byte(prefix)) || len(name) > git.MaxRefName {
		return false
	}
	last := byte('/') // the byte before
	for i := len(prefix); i < len(name); i++ {
		c := name[i]
		switch {
		case isAlphanumeric(c) || c >= 0x80 || c == '-' || c == '_':
		case c == '/' && last != '/':
		case c == '.' && isAlphanumeric(last) && i+1 < len(name) && '0' <= name[i+1] && name[i+1] <= '9':
		default:
			return git.IsSafeRefName(string(name))
		}
		last = c
	}
	return last != '/'
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
